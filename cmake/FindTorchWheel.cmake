# libtorch out of the torch wheel of a Python environment: ARGOSY_TORCH_PYTHON, else .venv of the source tree, else python3.
# Gives the target argosy_torch.
set(ARGOSY_TORCH_PYTHON "" CACHE FILEPATH "Python whose torch wheel to use")
set(_python ${ARGOSY_TORCH_PYTHON})
if(NOT _python AND EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(_python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
endif()
if(NOT _python)
  set(_python python3)
endif()
execute_process(
  COMMAND ${_python} -c "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
  OUTPUT_VARIABLE ARGOSY_TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _failed)
if(_failed)
  message(FATAL_ERROR "no torch wheel in ${_python}: run `${_python} -m pip install torch==2.13.0`, "
                      "or configure with -DARGOSY_TRAIN=OFF")
endif()
message(STATUS "libtorch: ${ARGOSY_TORCH_ROOT}")
find_package(OpenMP REQUIRED COMPONENTS CXX)

add_library(argosy_torch INTERFACE)
# After the system's headers: the wheel brings its own fmt, of another version than the one that spdlog here was built with.
target_compile_options(argosy_torch INTERFACE
  "SHELL:-idirafter ${ARGOSY_TORCH_ROOT}/include -idirafter ${ARGOSY_TORCH_ROOT}/include/torch/csrc/api/include")
target_link_libraries(argosy_torch INTERFACE
  ${ARGOSY_TORCH_ROOT}/lib/libtorch.so ${ARGOSY_TORCH_ROOT}/lib/libtorch_cpu.so ${ARGOSY_TORCH_ROOT}/lib/libc10.so)
# libtorch.so only names libtorch_cpu, whose static initialisers register the operators: it must be kept as needed.
target_link_options(argosy_torch INTERFACE "LINKER:--no-as-needed" "LINKER:-rpath,${ARGOSY_TORCH_ROOT}/lib")
