# Configures, builds and runs a user's project, and checks its output. MODE is find_package (against
# a fresh install of the build tree), add_subdirectory, or c: a program in C against such an install,
# with pkg-config and no CMake, then with CMake; or a house: its program against an install of the library
# alone.
# SPDX-License-Identifier: Apache-2.0

set(work ${PRIDE_BINARY_DIR}/tests/install/${MODE})
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work})

# run(what COMMAND...): fails with the command's output unless it succeeds; sets `output`.
function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

if(MODE STREQUAL "c")
  run("install" ${CMAKE_COMMAND} --install ${PRIDE_BINARY_DIR} --prefix ${work}/first)
  file(RENAME ${work}/first ${work}/moved)  # what is installed may be moved
  set(lib ${work}/moved/${LIBDIR})
  set(ENV{PKG_CONFIG_PATH} ${lib}/pkgconfig)
  set(ENV{LD_LIBRARY_PATH} ${lib})
  run("pkg-config" ${PKG_CONFIG} --cflags --libs pride)
  separate_arguments(flags UNIX_COMMAND "${output}")
  run("cc" ${C_COMPILER} -std=c11 ${PRIDE_SOURCE_DIR}/examples/c_interface.c -o ${work}/consumer
      ${flags} -pthread -lm)
  run("run" ${work}/consumer)
  run("configure" ${CMAKE_COMMAND} -G ${GENERATOR} -DCMAKE_BUILD_TYPE=${BUILD_TYPE}
      -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_PREFIX_PATH=${work}/moved
      -S ${CMAKE_CURRENT_LIST_DIR}/c_consumer -B ${work}/build)
  run("build" ${CMAKE_COMMAND} --build ${work}/build)
  run("run" ${work}/build/consumer)
  message(STATUS "${MODE}: ${output}")
  return()
endif()

set(configure ${CMAKE_COMMAND} -G ${GENERATOR} -DCMAKE_BUILD_TYPE=${BUILD_TYPE}
    -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
if(MODE STREQUAL "lab" OR MODE STREQUAL "coordinator")
  list(APPEND configure -DCMAKE_UNITY_BUILD=ON -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0
       -DCMAKE_PREFIX_PATH=${work}/prefix -DPRIDE_WITH_TORCH=OFF)
  run("install" ${CMAKE_COMMAND} --install ${PRIDE_BINARY_DIR} --prefix ${work}/prefix --component library)
  run("configure" ${configure} -S ${PRIDE_SOURCE_DIR}/${MODE} -B ${work}/build)
  run("build" ${CMAKE_COMMAND} --build ${work}/build --parallel 2)
  run("install" ${CMAKE_COMMAND} --install ${work}/build --prefix ${work}/prefix)
  set(command report)
  if(MODE STREQUAL "coordinator")
    set(command serve)
  endif()
  # `pride` of the library finds the house's program
  run("run" ${work}/prefix/bin/pride ${command} --help)
  if(output MATCHES "not installed" OR NOT output MATCHES "Examples:")
    message(FATAL_ERROR "pride ${command} --help printed:\n${output}")
  endif()
  if(MODE STREQUAL "lab" AND HAVE_TRAIN)
    run("install" ${CMAKE_COMMAND} --install ${PRIDE_BINARY_DIR} --prefix ${work}/all)
    list(APPEND configure -DCMAKE_PREFIX_PATH=${work}/all)
    run("configure" ${configure} -S ${PRIDE_SOURCE_DIR}/lab/examples -B ${work}/examples)
    run("build" ${CMAKE_COMMAND} --build ${work}/examples --parallel 2)
    run("run" ${work}/examples/example_train_own_model)
  endif()
  return()
endif()
if(MODE STREQUAL "find_package")
  set(source ${CMAKE_CURRENT_LIST_DIR}/consumer)
  run("install" ${CMAKE_COMMAND} --install ${PRIDE_BINARY_DIR} --prefix ${work}/prefix)
  list(APPEND configure -DCMAKE_PREFIX_PATH=${work}/prefix -DWITH_MPI=${HAVE_MPI}
       -DWITH_TORCH=${HAVE_TORCH} -DWITH_COORD=${HAVE_COORD})

  # a part that does not exist must be refused, and named
  execute_process(COMMAND ${configure} -DEXTRA_COMPONENT=zebra -S ${source} -B ${work}/refused
                  RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(result EQUAL 0 OR NOT out MATCHES "without the component 'zebra'")
    message(FATAL_ERROR "find_package(pride COMPONENTS zebra) was not refused by name:\n${out}")
  endif()
else()
  set(source ${CMAKE_CURRENT_LIST_DIR}/subproject)
  # two instruction sets, and nothing optimised: enough to test that it builds and links
  list(APPEND configure -DPRIDE_SOURCE_DIR=${PRIDE_SOURCE_DIR} -DPRIDE_KERNELS=FEW
       -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_UNITY_BUILD=ON)
endif()

run("configure" ${configure} -S ${source} -B ${work}/build)
run("build" ${CMAKE_COMMAND} --build ${work}/build --parallel 2)
run("run" ${work}/build/consumer)
if(NOT output MATCHES "3 ranks agree after one vote")
  message(FATAL_ERROR "the consumer printed:\n${output}")
endif()
message(STATUS "${MODE}: ${output}")
