# README.md with the table of the last `trillion bench --json` between its markers:
#     awk -v json=build/bench.json -v flags='-O2' -v commit=1a2b3c4 -f tools/bench_table.awk README.md
# Reads that command's own JSON, a key or a row of the table on each line; no parser of any other.
# Exit code 1 if the markers are not there or the JSON has no rows.

function value(line, key,    s) {               # "" for null and for a key that is not there
    if (!match(line, "\"" key "\":(\"[^\"]*\"|[^,}]*)")) return ""
    s = substr(line, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
    gsub(/^"|"$/, "", s)
    return s == "null" ? "" : s
}

function digits(x) {                            # three of them, and no exponent
    if (x == "") return "–"
    x += 0
    return sprintf(x < 0.1 ? "%.2g" : x < 9.995 ? "%.2f" : x < 99.95 ? "%.1f" : "%.0f", x)
}

function size(bytes) { return digits(bytes / 1048576) " MiB" }

# One cell: what the rows of a measure, one a number of threads, have under a key.
function cell(m, key,    s, k) {
    for (k = 1; k <= levels[m]; k++) s = s (k > 1 ? " · " : "") digits(value(row[m, k], key))
    return s
}

function take(line,    name, spread) {
    name = value(line, "name")
    if (!(name in levels)) order[++measures] = name
    row[name, ++levels[name]] = line
    if (levels[name] > most) most = levels[name]
    if (value(line, "repeats") + 0 > repeats) repeats = value(line, "repeats") + 0
    spread = value(line, "ours_median") == "" ? 0 : value(line, "ours") / value(line, "ours_median")
    if (spread > worst) worst = spread
}

function machine(    cores, streams, k) {
    for (k = 1; k <= most; k++) {
        cores = cores (k > 1 ? " · " : "") value(row["read", k], "threads")
        streams = streams (k > 1 ? " · " : "") value(row["read", k], "streams")
    }
    printf "%s, %s kernels; %s%s; %s", top["cpu"], top["kernels"], top["compiler"],
           flags == "" ? "" : " " flags, top["blas"] == "" ? "no OpenBLAS" : top["blas"]
    print commit == "" ? "." : "; commit " commit "."
    if (top["quick"] == "true") print "**A quick run in tiny sizes: its numbers mean nothing.**"
    printf "Numbers are for %s %s: the best of up to %d samples, taken in turn with the peer's;\n",
           cores, (cores == "1" ? "thread" : "threads"), repeats
    printf "the median of a row's samples is at most %.0f %% slower. Weights of one row fill %s of %s\n",
           100 * (worst - 1), size(top["pool_bytes"]),
           top["huge_pages"] == "true" ? "huge pages" : "plain pages"
    printf "(largest cache: %s). Memory was read with %s GB/s at best, over %s streams.\n\n",
           size(top["cache_bytes"]), cell("read", "peer"), streams
}

function measure(m,    first, k, goal, missed) {
    first = row[m, 1]
    goal = value(first, "goal")
    for (k = 1; k <= levels[m]; k++)
        if (value(row[m, k], "met") == "false") missed = ", missed"
    if (goal != "") goal = "≥ " (goal + 0)
    if (goal != "" && value(first, "goal_of") == "ours") goal = goal " " value(first, "unit")
    if (value(first, "ours") == "")
        printf "| %s | not measured: %s | | | %s |\n", value(first, "what"), value(first, "why"), goal
    else
        printf "| %s | %s %s | %s %s | %s | %s |\n", value(first, "what"), cell(m, "ours"),
               value(first, "unit"), value(first, "peer_name"), cell(m, "peer"), cell(m, "ratio"),
               goal missed
}

function table(    i) {
    machine()
    print "| what | ours | peer or limit | ratio | goal |\n|---|---|---|---|---|"
    for (i = 1; i <= measures; i++) if (order[i] != "read") measure(order[i])
}

BEGIN {
    while ((getline text < json) > 0) {
        if (text ~ /"name":/) { take(text); continue }
        if (match(text, /"[a-z_]+":/)) {
            key = substr(text, RSTART + 1, RLENGTH - 3)
            top[key] = value(text, key)
        }
    }
}
$0 == "<!-- /bench -->" { inside = 0; closed++ }
!inside { print }
$0 == "<!-- bench -->" { inside = 1; if (measures) table() }
END { exit !(measures && closed == 1 && !inside) }
