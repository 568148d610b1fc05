# The language-model run that the demo and the sweep share: sourced by both, so that a swept rate
# belongs to exactly the run that is shown.
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034  # the variables are for the scripts that source this

readonly lm_methods=(adamw lion dlion-vote dlion-avg)
readonly lm_program=build/release/apps/pride/pride

# Size of the model and of the run; PRIDE_DEMO_STEPS and PRIDE_DEMO_WORKERS change it from outside.
lm_steps=${PRIDE_DEMO_STEPS:-200}
lm_workers=${PRIDE_DEMO_WORKERS:-4}
lm_batch=8  # sequences per worker and step
lm_model=(--layers 4 --heads 4 --width 128 --context 128)

lm_build() {
  scripts/setup.sh
  cmake --preset release >/dev/null
  cmake --build build/release --parallel "${PRIDE_TEST_JOBS:-2}" --target pride
}

# lm_run METHOD LR SEED OUT: trains once; the batches depend on the seed alone, never on the method.
lm_run() {
  "$lm_program" train --task lm --method "$1" --lr "$2" --seed "$3" --out "$4" --overwrite \
    --workers "$lm_workers" --batch "$lm_batch" --steps "$lm_steps" "${lm_model[@]}" \
    --schedule cosine --warmup $((lm_steps / 10)) --eval-every $((lm_steps / 3)) \
    --log-every 50 </dev/null
}
