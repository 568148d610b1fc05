# Tests that run a program as several processes with the variables that torchrun sets.
# SPDX-License-Identifier: Apache-2.0

# pride_ranks_add_test(name ranks timeout_s program args...)
# Such a test takes one place, and begins before those of one process.
function(pride_ranks_add_test name ranks timeout_s program)
  add_test(NAME ${name}
    COMMAND $<TARGET_FILE:rank_launcher> ${ranks} $<TARGET_FILE:${program}> ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS "lab;c10d" TIMEOUT ${timeout_s} COST 200
    ENVIRONMENT ${pride_one_blas_thread})
endfunction()
