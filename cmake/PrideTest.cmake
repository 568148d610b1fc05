# How tests are registered, of the library and of the houses.
# SPDX-License-Identifier: Apache-2.0
find_package(GTest REQUIRED)
include(GoogleTest)

# OpenBLAS makes threads as there are cores, which spin: beside those of several ranks and tests the
# methods' tests take twice as long. The trainer sets this itself; methods.blas_threads has several.
set(pride_one_blas_thread OPENBLAS_NUM_THREADS=1)

# pride_test(name SOURCES a.cpp ... [LIBS t ...] [LABELS l ...] [TIMEOUT s] [LONG filter] [LONG_IN_THREADS
# filter] [WHOLE]): one program of GoogleTest cases, registered case by case with CTest, or as one test:
# with libtorch, which takes most of a second to load. Under sanitizers, which take up to 0.2 s of processor
# time to start, it is four tests, of a quarter of the cases each. Single-threaded tests (label serial) are
# not built for ThreadSanitizer. GoogleTest filters name the cases that sanitizers make too long: LONG those
# that all of them leave out, LONG_IN_THREADS those that ThreadSanitizer does. Files of a folder are
# compiled together: where many have helpers of the same names each has a namespace of its own.
function(pride_test name)
  cmake_parse_arguments(T "WHOLE" "TIMEOUT;LONG;LONG_IN_THREADS" "SOURCES;LIBS;LABELS" ${ARGN})
  if("serial" IN_LIST T_LABELS AND PRIDE_SANITIZE STREQUAL "thread")
    return()
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  set(cost 0)
  if("slow" IN_LIST T_LABELS)  # COST is about seconds: long tests begin first, none is alone at the end
    set(cost 10)
  endif()
  add_executable(${name} ${T_SOURCES})
  pride_target(${name})
  if(NOT PRIDE_SANITIZE OR NOT "core" IN_LIST T_LABELS)  # oracles of kernels and methods are loops
    pride_light(${name})
  endif()
  target_include_directories(${name} PRIVATE ${PRIDE_ROOT}/src ${PRIDE_ROOT}/tests)
  target_link_libraries(${name} PRIVATE pride::core GTest::gtest GTest::gtest_main ${T_LIBS})
  if(T_WHOLE)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} COST ${cost}
      ENVIRONMENT ${pride_one_blas_thread} LABELS "${T_LABELS}")
  elseif(PRIDE_SANITIZE)
    set(left_out ${T_LONG})
    if(PRIDE_SANITIZE STREQUAL "thread")
      list(APPEND left_out ${T_LONG_IN_THREADS})
    endif()
    list(JOIN left_out ":" left_out)
    foreach(quarter 0 1 2 3)
      add_test(NAME ${name}.${quarter} COMMAND ${name} --gtest_filter=-${left_out})
      set_tests_properties(${name}.${quarter} PROPERTIES TIMEOUT 600 COST 50 LABELS "${T_LABELS}"
        ENVIRONMENT "${pride_one_blas_thread};GTEST_TOTAL_SHARDS=4;GTEST_SHARD_INDEX=${quarter}")
    endforeach()
  else()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_LIST ${name}_cases
      PROPERTIES TIMEOUT ${T_TIMEOUT} COST ${cost} ENVIRONMENT ${pride_one_blas_thread})
    # a list would be split on its way to CTest: the labels are set after test discovery
    set(labels ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
    file(WRITE ${labels} "if(${name}_cases)  # empty while the program is not built
  set_tests_properties(\${${name}_cases} PROPERTIES LABELS \"${T_LABELS}\")
endif()
")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels})
  endif()
endfunction()

# pride_runs_program(test here): a test that runs `pride` as a user does, or the program of the module
# `here` in its own process (support/run_here.h).
function(pride_runs_program test here)
  target_compile_definitions(${test} PRIVATE
    PRIDE_PROGRAM="$<TARGET_FILE:pride>" PRIDE_HERE="$<TARGET_FILE:${here}>")
  target_link_libraries(${test} PRIVATE ${CMAKE_DL_LIBS})
  add_dependencies(${test} pride ${here})
endfunction()
