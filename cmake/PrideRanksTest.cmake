# Tests that run a program as several processes with the variables that torchrun sets.
# SPDX-License-Identifier: Apache-2.0

# pride_ranks_add_test(name ranks timeout_s program args...)
# On two cores such tests run one after the other, beside one of one process; first, because a place
# for one goes to a test of one process while there are any.
function(pride_ranks_add_test name ranks timeout_s program)
  add_test(NAME ${name}
    COMMAND $<TARGET_FILE:rank_launcher> ${ranks} $<TARGET_FILE:${program}> ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS c10d TIMEOUT ${timeout_s} PROCESSORS 2 COST 50
    ENVIRONMENT ${pride_one_blas_thread})
endfunction()
