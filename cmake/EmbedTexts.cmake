# cmake -DOUT=FILE -DTEXTS="kName=FILE;..." -DHEADER=... [-DNAMESPACE=pride::app] -P: a C++ file with these
# texts in that namespace.
# SPDX-License-Identifier: Apache-2.0
if(NOT NAMESPACE)
  set(NAMESPACE pride::app)
endif()
set(code "// Made by cmake/EmbedTexts.cmake.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n")
foreach(pair IN LISTS TEXTS)
  string(REGEX MATCH "^([^=]+)=(.*)$" _ "${pair}")
  set(name ${CMAKE_MATCH_1})
  file(READ ${CMAKE_MATCH_2} text)
  string(FIND "${text}" ")=text=" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${CMAKE_MATCH_2} holds the end of a raw string")
  endif()
  string(APPEND code "const char* const ${name} = R\"=text=(${text})=text=\";\n")
endforeach()
file(WRITE ${OUT} "${code}}  // namespace ${NAMESPACE}\n")
