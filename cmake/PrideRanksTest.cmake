# Tests that run a program as several processes with the variables that torchrun sets.
# SPDX-License-Identifier: Apache-2.0

# pride_ranks_add_test(name ranks timeout_s program args...)
# On two cores such tests run one after the other, beside one of one process. CTest never keeps a place
# free for them: they have more COST than any test of one process, so that two places are theirs from
# the start.
function(pride_ranks_add_test name ranks timeout_s program)
  add_test(NAME ${name}
    COMMAND $<TARGET_FILE:rank_launcher> ${ranks} $<TARGET_FILE:${program}> ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS c10d TIMEOUT ${timeout_s} PROCESSORS 2 COST 200
    ENVIRONMENT ${pride_one_blas_thread})
endfunction()
