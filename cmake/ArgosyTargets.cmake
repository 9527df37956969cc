# Up to six files of the target are compiled as one, when the build is to be quick from nothing: their headers are read once.
function(argosy_unity name)
  if(ARGOSY_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
    # An anonymous namespace of an included .cc file looks like one of a header; with more inlined, GCC 12 takes the other members of a
    # std::variant for uninitialised.
    target_compile_options(${name} PRIVATE -Wno-subobject-linkage -Wno-maybe-uninitialized)
  endif()
endfunction()

# argosy_library(NAME SRCS a.cc b.cc DEPS x y): one static library a folder; includes are written from the repository root.
function(argosy_library name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  if(A_SRCS)
    add_library(${name} STATIC ${A_SRCS})
    target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
    target_link_libraries(${name} PUBLIC ${A_DEPS} PRIVATE ${A_PRIVATE_DEPS})
    argosy_unity(${name})
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
    target_link_libraries(${name} INTERFACE ${A_DEPS})
  endif()
endfunction()

# argosy_test(NAME SRCS a_test.cc DEPS x y [ARGS ...] [TIMEOUT seconds]): a Catch2 executable that ctest runs as one test.
function(argosy_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SRCS;DEPS;ARGS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE ${A_DEPS} argosy_catch)
  argosy_unity(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} ${A_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT})
endfunction()
