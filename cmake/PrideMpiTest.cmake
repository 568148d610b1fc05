# Tests that run a program as several MPI ranks on this machine.
# SPDX-License-Identifier: Apache-2.0

# pride_mpi_add_test(name ranks timeout_s program args...)
# Open MPI's ranks poll while they wait: such tests take three of four places, and so run one after the
# other. CTest never keeps places free for them: they have more COST than any other test, so that three
# are theirs from the start.
# The settings let more ranks than cores run, as anybody, and keep Open MPI (4 and 5) from complaining
# of hardware that is not there; other MPIs ignore them.
function(pride_mpi_add_test name ranks timeout_s program)
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks}
    ${MPIEXEC_PREFLAGS} $<TARGET_FILE:${program}> ${ARGN})
  set(environment
    ${pride_one_blas_thread}
    OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_mpi_yield_when_idle=1
    OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_btl_base_warn_component_unused=0
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe)
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT "${environment}" LABELS mpi TIMEOUT ${timeout_s} PROCESSORS 3 COST 400)
endfunction()
