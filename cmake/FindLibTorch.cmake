# Finds the libtorch inside the pinned PyTorch wheel: headers and libraries, nothing of the wheel's
# own CMake package (it wants the CUDA toolkit and rewrites global flags).
#   WEFT_TORCH_DIR: the folder of the Python package `torch`; by default that of .venv, else of python3.
# Gives LibTorch::torch, LibTorch_VERSION, LibTorch_CUDA.
if(NOT WEFT_TORCH_DIR)
  foreach(python "${CMAKE_SOURCE_DIR}/.venv/bin/python" python3)
    execute_process(
      COMMAND ${python} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE dir ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE code)
    if(code EQUAL 0 AND dir)
      set(WEFT_TORCH_DIR "${dir}" CACHE PATH "Folder of the Python package torch")
      break()
    endif()
  endforeach()
endif()
find_library(LibTorch_LIBRARY torch PATHS "${WEFT_TORCH_DIR}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_CPU torch_cpu PATHS "${WEFT_TORCH_DIR}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10 c10 PATHS "${WEFT_TORCH_DIR}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_CUDA_LIBRARY torch_cuda PATHS "${WEFT_TORCH_DIR}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10_CUDA c10_cuda PATHS "${WEFT_TORCH_DIR}/lib" NO_DEFAULT_PATH)
if(EXISTS "${WEFT_TORCH_DIR}/version.py")
  file(STRINGS "${WEFT_TORCH_DIR}/version.py" version REGEX "^__version__")
  string(REGEX REPLACE ".*'([0-9.]+).*" "\\1" LibTorch_VERSION "${version}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_LIBRARY LibTorch_CPU LibTorch_C10 WEFT_TORCH_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "run scripts/deps, or set WEFT_TORCH_DIR to the Python package torch")

set(LibTorch_CUDA OFF)
if(LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA)
  if(WEFT_CUDA STREQUAL "ON")
    set(LibTorch_CUDA ON)
  elseif(WEFT_CUDA STREQUAL "AUTO" AND EXISTS /dev/nvidia0)
    set(LibTorch_CUDA ON)
  endif()
endif()
if(LibTorch_FOUND AND NOT TARGET LibTorch::torch)
  add_library(LibTorch::torch INTERFACE IMPORTED)
  # After the system's own: the wheel carries other versions of fmt and protobuf.
  target_compile_options(LibTorch::torch INTERFACE
    "SHELL:-idirafter ${WEFT_TORCH_DIR}/include"
    "SHELL:-idirafter ${WEFT_TORCH_DIR}/include/torch/csrc/api/include")
  target_link_libraries(LibTorch::torch INTERFACE ${LibTorch_CPU} ${LibTorch_C10})
  target_link_options(LibTorch::torch INTERFACE "-Wl,-rpath,${WEFT_TORCH_DIR}/lib")
  if(LibTorch_CUDA)
    # Nothing names a symbol of torch_cuda: it registers its kernels when it is loaded.
    target_link_libraries(LibTorch::torch INTERFACE
      "-Wl,--no-as-needed" ${LibTorch_CUDA_LIBRARY} ${LibTorch_C10_CUDA} "-Wl,--as-needed")
    target_compile_definitions(LibTorch::torch INTERFACE WEFT_CUDA=1)
  endif()
endif()
