# Compares what the libraries export, and what programs have built in, with abi.txt. By hand:
#   cmake -DNM=nm -DPRINT=.../abi_print -DPRIDE=.../libpride.so [-DPRIDE_MPI=.../libpride_mpi.so]
#         -DFILE=tests/c/abi.txt [-DUPDATE=ON] -P tests/c/abi_test.cmake
# SPDX-License-Identifier: Apache-2.0

# Appends a library's SONAME and exported symbols to `text`, one a line.
function(add_exports name library)
  execute_process(COMMAND ${NM} -D --defined-only --with-symbol-versions ${library}
                  OUTPUT_VARIABLE out COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" lines "${out}")
  list(TRANSFORM lines REPLACE "^[0-9a-f]+ " "")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^(T pride_[a-z0-9_]+@@PRIDE_[0-9]+|A PRIDE_[0-9]+(@@PRIDE_[0-9]+)?)$")
      message(FATAL_ERROR "${name} exports something else than a function pride_...: ${line}\n"
                          "src/c/exports.map decides what is exported")
    endif()
  endforeach()
  list(SORT lines)
  list(JOIN lines "\n" lines)
  string(APPEND text "## ${name}\n${lines}\n")
  set(text "${text}" PARENT_SCOPE)
endfunction()

set(text "")
add_exports(libpride.so.1 ${PRIDE})
if(PRIDE_MPI)
  add_exports(libpride_mpi.so.1 ${PRIDE_MPI})
endif()
execute_process(COMMAND ${PRINT} OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
string(APPEND text "## Headers\n${printed}")

if(UPDATE)
  file(WRITE ${FILE} "${text}")
  return()
endif()
file(READ ${FILE} golden)
if(NOT PRIDE_MPI)
  string(REGEX REPLACE "## libpride_mpi[^#]*" "" golden "${golden}")
endif()
if(text STREQUAL golden)
  return()
endif()

# the lines on one side only
string(REGEX MATCHALL "[^\n]+" now "${text}")
string(REGEX MATCHALL "[^\n]+" was "${golden}")
set(gone ${was})
list(REMOVE_ITEM gone ${now})
set(new ${now})
list(REMOVE_ITEM new ${was})
list(JOIN gone "\n  - " gone)
list(JOIN new "\n  + " new)
message(FATAL_ERROR "the ABI is not that of ${FILE}:\n  - ${gone}\n  + ${new}\n"
  "A function, an enumerator or a struct's last member that was added raises PRIDE_C_VERSION.\n"
  "A struct may grow only if the caller sets its struct_size, and the library must take the old "
  "size.\n"
  "Anything that is gone, moved or of another size breaks programs: SOVERSION in "
  "src/c/CMakeLists.txt (libpride.so.2), the node in src/c/exports.map and the numbers in "
  "abi_test.cmake must change with it.\n"
  "If the change is meant: cmake --build BUILD --target update_c_abi, and commit abi.txt with it.")
