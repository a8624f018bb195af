# Compiler settings every target of weft shares.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
if(WEFT_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")  # half the time to compile, and whole stacks in reports
endif()

find_program(WEFT_CCACHE ccache)
if(WEFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # pch_defines and time_macros: without them ccache refuses every unit that uses a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
      "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" "CCACHE_NOHASHDIR=1" ${WEFT_CCACHE})
endif()

add_library(weft_options INTERFACE)
target_compile_options(weft_options INTERFACE -Wall -Wextra -Wpedantic)
if(WEFT_WERROR)
  target_compile_options(weft_options INTERFACE -Werror)
endif()
target_include_directories(weft_options INTERFACE ${CMAKE_SOURCE_DIR})
if(WEFT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "WEFT_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++-16")
  endif()
  set(WEFT_SANITIZE "address,undefined")
  target_compile_options(weft_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(WEFT_SANITIZE MATCHES "thread")
  # Asio's fences are no help beside its mutexes, and ThreadSanitizer does not understand them.
  target_compile_definitions(weft_options INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()
if(WEFT_SANITIZE)
  # An error of undefined behaviour ends the run, as one of memory does.
  target_compile_options(weft_options INTERFACE -fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(weft_options INTERFACE -fsanitize=${WEFT_SANITIZE})
endif()
