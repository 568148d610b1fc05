# Settings that every target of pride shares, and the search for the optional parts.
# SPDX-License-Identifier: Apache-2.0

include_guard(GLOBAL)
include(GNUInstallDirs)

# The folder of the repository, in the houses, too.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH PRIDE_ROOT)
set(PRIDE_ROOT ${PRIDE_ROOT} CACHE INTERNAL "pride's repository")
set(PRIDE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/pride)
# beside `pride`, which looks for the programs of the houses there
set(PRIDE_PROGRAM_DIR ${CMAKE_BINARY_DIR}/apps/pride)

option(PRIDE_DEVELOPER "Warnings are errors" OFF)
set(PRIDE_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Compile through ccache where it is installed, unless the user chose a launcher.
find_program(PRIDE_CCACHE ccache)
mark_as_advanced(PRIDE_CCACHE)
if(PRIDE_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PRIDE_CCACHE})
endif()

# pride_target(name): C++20, warnings, sanitizers, and the rule of arithmetic that
# forbids FMA contraction (docs/wire_format.md, "Same bits everywhere").
function(pride_target name)
  target_compile_features(${name} PUBLIC cxx_std_20)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${name} PRIVATE -Wall -Wextra $<$<BOOL:${PRIDE_DEVELOPER}>:-Werror>)
  target_compile_options(${name} PRIVATE -ffp-contract=off)
  # GCC 12 warns of overlap inside std::string assignments that cannot be: GCC bug 105651
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${name} PRIVATE -Wno-restrict)
  endif()
  if(PRIDE_SANITIZE)
    target_compile_options(${name} PRIVATE -fsanitize=${PRIDE_SANITIZE} -fno-omit-frame-pointer
                                           -fno-sanitize-recover=all)
    # under GCC these two take a quarter of the time that both sanitizers take to compile;
    # AddressSanitizer finds what they find once it is used, and the fuzzers, built by clang, have them
    if(PRIDE_SANITIZE MATCHES "address,undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${name} PRIVATE -fno-sanitize=null,object-size)
    endif()
    target_link_options(${name} PUBLIC -fsanitize=${PRIDE_SANITIZE})
  endif()
  set_target_properties(${name} PROPERTIES UNITY_BUILD_MODE GROUP)
  cmake_language(EVAL CODE "cmake_language(DEFER CALL pride_group_sources ${name})")
endfunction()

# pride_group_sources(name): what CMAKE_UNITY_BUILD compiles together: the sources of a folder, at most
# twelve. Groups by count over a whole target would depend on which optional sources it has, and so
# would the clashes between names of their unnamed namespaces. Their names hold no path of a clone, so
# that clones share what ccache keeps.
function(pride_group_sources name)
  get_target_property(sources ${name} SOURCES)
  list(FILTER sources INCLUDE REGEX "^[^$]*[.]cpp$")
  set(folders)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(ABSOLUTE_PATH folder NORMALIZE)
    string(REPLACE "${CMAKE_BINARY_DIR}" "" folder "${folder}")
    string(REPLACE "${PRIDE_ROOT}" "" folder "${folder}")
    string(MAKE_C_IDENTIFIER "in${folder}" folder)
    list(APPEND folders ${folder})
    list(APPEND ${folder} ${source})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    list(LENGTH ${folder} count)
    math(EXPR parts "(${count} + 11) / 12")
    set(index 0)
    foreach(source IN LISTS ${folder})
      math(EXPR part "${index} * ${parts} / ${count}")
      set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${folder}_${part})
      math(EXPR index "${index} + 1")
    endforeach()
  endforeach()
endfunction()

# pride_light(target...): code of which no loop takes long (flags, records, reports, tests, the calls
# of libtorch). Release builds compile it with -O1, in about half of the time, and sanitizer builds,
# whose own level that is, with -O0, in half to two thirds.
function(pride_light)
  set(level $<$<CONFIG:Release>:-O1>)
  if(PRIDE_SANITIZE)
    set(level -O0)
  endif()
  foreach(name IN LISTS ARGN)
    target_compile_options(${name} PRIVATE ${level})
  endforeach()
endfunction()

# pride_measured(source...): what of a light target is not light.
function(pride_measured)
  set(level $<$<CONFIG:Release>:-O3>)
  if(PRIDE_SANITIZE)
    set(level -O1)
  endif()
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS ${level})
endfunction()

# pride_uses_regex(source...): GCC 12 takes a part of <regex> for uninitialised in sanitizer builds:
# GCC bug 105562.
function(pride_uses_regex)
  if(PRIDE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -Wno-maybe-uninitialized)
  endif()
endfunction()

# pride_uses_torch(target): links libtorch, after the C++ library: the libtorch of PyTorch's own
# packages exports parts of an older one, with which std::filesystem::remove_all() crashes.
function(pride_uses_torch target)
  target_link_libraries(${target} PUBLIC pride::core $<$<CXX_COMPILER_ID:GNU>:stdc++> torch)
endfunction()

# pride_optional(variable package args...): honours AUTO / ON / OFF.
function(pride_optional variable package)
  set(PRIDE_HAVE_${variable} FALSE PARENT_SCOPE)
  if(PRIDE_WITH_${variable} STREQUAL "OFF")
    message(STATUS "pride: ${variable} switched off")
    return()
  endif()
  find_package(${package} ${ARGN})
  if(${package}_FOUND)
    set(PRIDE_HAVE_${variable} TRUE PARENT_SCOPE)
  elseif(PRIDE_WITH_${variable} STREQUAL "ON")
    message(FATAL_ERROR "pride: PRIDE_WITH_${variable}=ON, but ${package} was not found")
  else()
    message(STATUS "pride: ${package} not found, building without ${variable}")
  endif()
endfunction()

# pride_install(target export): installs one library and its export file, <export>Targets.cmake.
function(pride_install target export)
  install(TARGETS ${target} EXPORT ${export}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(EXPORT ${export} NAMESPACE pride:: FILE ${export}Targets.cmake
          DESTINATION ${PRIDE_PACKAGE_DIR})
endfunction()

# pride_embed(output header NAME=FILE...): a source with these files as texts of namespace pride::app.
function(pride_embed output header)
  list(TRANSFORM ARGN REPLACE "^[^=]*=" "" OUTPUT_VARIABLE files)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUT=${output} "-DTEXTS=${ARGN}" -DHEADER=${header}
      -P ${PRIDE_ROOT}/cmake/EmbedTexts.cmake
    DEPENDS ${files} ${PRIDE_ROOT}/cmake/EmbedTexts.cmake
    WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} VERBATIM)
endfunction()

# pride_c_library(name output source...): a library of C functions alone; C++ is hidden in it.
function(pride_c_library name output)
  add_library(${name} SHARED ${ARGN})
  pride_target(${name})
  set(exports ${PRIDE_ROOT}/src/c/exports.map)
  target_link_options(${name} PRIVATE -Wl,--version-script=${exports})
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${output} SOVERSION 1
                        VERSION 1.${PRIDE_VERSION_MINOR}.${PRIDE_VERSION_PATCH}
                        INTERFACE_COMPILE_FEATURES ""  # users may have no C++ compiler
                        CXX_VISIBILITY_PRESET hidden LINK_DEPENDS ${exports}
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/src/c)
endfunction()
