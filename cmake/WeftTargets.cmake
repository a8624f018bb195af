# weft_library(NAME [LINK lib...]): a static library from every .cpp of the calling folder and its
# sub-folders, except main files (*_main.cpp), which weft_program turns into programs.
function(weft_library name)
  cmake_parse_arguments(ARG "" "" "LINK;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_main\\.cpp$")
  foreach(pattern IN LISTS ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${pattern}")
  endforeach()
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC ${ARG_LINK} PRIVATE weft_options)
    target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_LINK})
    target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR})
  endif()
endfunction()

# weft_program(NAME MAIN file [LINK lib...]): build/bin/NAME.
function(weft_program name)
  cmake_parse_arguments(ARG "" "MAIN" "LINK" ${ARGN})
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_MAIN})
    add_executable(${name} ${ARG_MAIN})
    target_link_libraries(${name} PRIVATE ${ARG_LINK} weft_options)
  endif()
endfunction()

# What every test finds in its environment.
set(weft_test_environment "WEFT_SOURCE_DIR=${CMAKE_SOURCE_DIR}" "WEFT_BIN_DIR=${CMAKE_BINARY_DIR}/bin")
if(WEFT_SANITIZE)
  list(APPEND weft_test_environment
    "ASAN_OPTIONS=exitcode=99 detect_stack_use_after_return=1"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=history_size=4 ignore_noninstrumented_modules=1 suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp")
endif()

# weft_test(NAME LABEL label LINK lib... SOURCES files...): a GoogleTest binary registered with ctest
# as one test per binary; the label is its tier (fast, slow, integration).
function(weft_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "LINK;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest GTest::gmock GTest::gtest_main weft_options)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "${weft_test_environment}")
endfunction()
