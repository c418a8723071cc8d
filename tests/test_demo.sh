#!/bin/sh
# The demo holds what it shows: it passes, in 100 columns; a number of the vendor's that is changed,
# a lost one or a broken picture is noticed, in the step that is about it.
. tests/lib.sh
W=build/test_demo
G=tests/golden
rm -rf $W
mkdir -p $W

sh tools/demo.sh > $W/out 2> $W/err
code=$?
[ $code -eq 0 ] && [ ! -s $W/err ] && ok 'the demo passes and warns of nothing' ||
    bad 'the demo passes and warns of nothing' "exit code $code
$(cat $W/err)"
tail -n 1 $W/out | grep -q '^demo: from picture to answer' && ok 'its last line is the verdict' ||
    bad 'its last line is the verdict' "$(tail -n 2 $W/out)"
[ "$(grep -c '^  equal ' $W/out)" -eq 4 ] && [ "$(grep -c '^  within ' $W/out)" -eq 3 ] &&
    ok 'seven comparisons' || bad 'seven comparisons' "$(cat $W/out)"
wide=$(awk 'length > 100' $W/out)
[ -z "$wide" ] && ok 'it fits 100 columns' || bad 'it fits 100 columns' "$wide"
for w in '75 x 166' '1 x 12 x 6' 'patches   72' 'tokens    18' '688 of 688' \
    'fine (2 warnings, which it lists)'; do
    grep -q "$w" $W/out && ok "it shows $w" || bad "it shows $w"
done
build/trillion image build/demo/seen.png --model $G/kimi_k3/multimodal 2>&1 | grep -q '431 x 860' &&
    ok 'it draws what the model sees' || bad 'it draws what the model sees'

# A tests/golden of links, but for the file that is to be changed.
other() {
    rm -rf $W/golden
    mkdir -p $W/golden/kimi_k3 $W/golden/images
    for d in vision text-a multimodal; do cp -R $G/kimi_k3/$d $W/golden/kimi_k3/$d; done
    ln -s ../../../../$G/images/files $W/golden/images/files
    cp -R $G/images/expected $W/golden/images/expected
}

# notices STEP FILE TENSOR BYTES: overwrites the first bytes; only that step's verdict differs.
notices() {
    other
    poke $W/golden/$2 "$3" "$4"
    sh tools/demo.sh $W/golden > $W/out 2> $W/err
    code=$?
    at=$(awk '/^[1-6]  / { step = $1 } /DIFFERS/ { print step }' $W/out | tr '\n' ' ')
    [ $code -eq 1 ] && [ "$at" = "$1 " ] && grep -q '^demo: something DIFFERS' $W/err &&
        ok "a changed $3" || bad "a changed $3" "exit code $code, differs in step $at
$(cat $W/err)"
}

mm=kimi_k3/multimodal/expected.safetensors
notices 1 images/expected/photo_113x251.png.limit60.safetensors resized_pillow12 '\001'
two='\0\0\0\0\0\0\0\100'                 # as binary64
notices 3 kimi_k3/vision/expected.safetensors f64.vision_tower.encoder.blocks.1.mlp $two
notices 4 $mm f64.mm_projector.0 $two
notices 4 $mm f64.logits $two
notices 4 $mm pixel_values '\0\0\0\0'
notices 4 $mm f64.language_model.model.layers.3.block_sparse_moe.gate.topk_ids '\015'
notices 5 $mm f64.greedy_ids '\0'
notices 6 kimi_k3/text-a/expected.safetensors f64.logits $two

other
LC_ALL=C sed 's/"f64.mm_projector.1"/"f64.mm_projector.x"/' $G/$mm > $W/golden/$mm
sh tools/demo.sh $W/golden > $W/out 2> $W/err
[ $? -eq 1 ] && grep -q 'DIFFERS  19 tensors here, not 20' $W/out && ok 'a lost tensor' ||
    bad 'a lost tensor' "$(cat $W/err)"
other
head -c 9000 $G/kimi_k3/multimodal/picture-1.png > $W/golden/kimi_k3/multimodal/picture-1.png
sh tools/demo.sh $W/golden > $W/out 2> $W/err
[ $? -eq 2 ] && grep -q 'picture-1.png' $W/err && ok 'half a picture' ||
    bad 'half a picture' "$(cat $W/err)"

end
