# The build's switches, each with its meaning.

set(RELIBRA_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (when nvcc is found), ON, OFF")
set_property(CACHE RELIBRA_CUDA PROPERTY STRINGS AUTO ON OFF)
set(RELIBRA_CUDA_ARCHITECTURES "80-real;90a-real;100a-real" CACHE STRING "GPU architectures to build for")
set(RELIBRA_SANITIZE "" CACHE STRING "Sanitizers for every target, e.g. address,undefined or thread")
option(RELIBRA_TESTS "Build the tests" ON)

set(RELIBRA_HAVE_CUDA OFF)
if(NOT RELIBRA_CUDA STREQUAL "OFF")
  find_program(RELIBRA_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
  if(RELIBRA_NVCC)
    set(CMAKE_CUDA_COMPILER ${RELIBRA_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES ${RELIBRA_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know nvcc's flag
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(RELIBRA_HAVE_CUDA ON)
  elseif(RELIBRA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "RELIBRA_CUDA=ON, but no nvcc on PATH, under CUDA_HOME or in /usr/local/cuda/bin")
  endif()
endif()
message(STATUS "CUDA kernels: ${RELIBRA_HAVE_CUDA}")

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc 12 reports false positives for these from inside std:: and absl:: at -O2 and above.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>
                      $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(RELIBRA_SANITIZE)
  add_compile_options(-fsanitize=${RELIBRA_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -O1 -g1)  # -g1: lines enough, half the build time
  add_link_options(-fsanitize=${RELIBRA_SANITIZE})
endif()
