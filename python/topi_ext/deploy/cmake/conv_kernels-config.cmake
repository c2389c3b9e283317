# SPDX-License-Identifier: Apache-2.0
# Kernels of tvm-conv-ext in C programs, without TVM and without Python where they run.
#
#   add_conv_kernels(<library> [TARGET <json or processor>] [THREADS OPENMP|PTHREADS|SERIAL])
#     Makes a static library. TARGET is what kernels are built for: this machine if left out, which
#     cross-compiling refuses. THREADS: PTHREADS where there are some, else SERIAL, if left out.
#
#   add_conv_kernel(<library> <name> <operator> <input shape> <weight shape>
#     [STRIDE n] [PADDING n] [DILATION n] [OUTPUT_PADDING n] [GROUPS n]
#     [DATA_LAYOUT l] [KERNEL_LAYOUT l] [OUT_LAYOUT l] [DTYPE d] [OUT_DTYPE d]
#     [EPILOGUE step ...] [PACKED])
#     Adds a function <name> and its header <name>.h; all headers together are <library>.h.
#     What values mean: python -m topi_ext.emit --help
#
# Needs the language C, and where it is built a Python that has topi_ext and TVM: Python_EXECUTABLE.

find_package(Python COMPONENTS Interpreter REQUIRED)

# Functions are called from other folders than this file is found from, where variables are others.
set_property(GLOBAL PROPERTY CONV_KERNELS_PYTHON ${Python_EXECUTABLE})

function(_conv_kernels_threads library wanted)
  if(NOT wanted MATCHES "^(OPENMP|PTHREADS|SERIAL)?$")
    message(FATAL_ERROR "add_conv_kernels: THREADS ${wanted} must be OPENMP, PTHREADS or SERIAL")
  endif()
  if(wanted STREQUAL "OPENMP")
    find_package(OpenMP REQUIRED COMPONENTS C)
    target_link_libraries(${library} PUBLIC OpenMP::OpenMP_C)
    target_compile_definitions(${library} PRIVATE CONV_KERNELS_OPENMP)
    return()
  endif()
  if(wanted STREQUAL "" OR wanted STREQUAL "PTHREADS")
    find_package(Threads QUIET)
    if(CMAKE_USE_PTHREADS_INIT)
      target_link_libraries(${library} PUBLIC Threads::Threads)
      target_compile_definitions(${library} PRIVATE CONV_KERNELS_PTHREADS)
      return()
    elseif(wanted)
      message(FATAL_ERROR "add_conv_kernels: THREADS PTHREADS: there are no POSIX threads")
    endif()
  endif()
  target_compile_definitions(${library} PRIVATE CONV_KERNELS_SERIAL)
endfunction()

function(add_conv_kernels library)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TARGET;THREADS" "")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "add_conv_kernels: ${arg_UNPARSED_ARGUMENTS}: no such option")
  endif()
  if(CMAKE_CROSSCOMPILING AND NOT arg_TARGET)
    message(FATAL_ERROR "add_conv_kernels: TARGET must name the processor of ${CMAKE_SYSTEM_PROCESSOR}")
  endif()
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(NOT "C" IN_LIST languages)
    message(FATAL_ERROR "add_conv_kernels: the project must enable the language C")
  endif()
  get_filename_component(runtime ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../runtime ABSOLUTE)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${library})
  add_library(${library} STATIC ${runtime}/conv_kernels.c)
  set_target_properties(${library} PROPERTIES
    CONV_KERNELS_TARGET "${arg_TARGET}"
    CONV_KERNELS_NAMES ""
    C_VISIBILITY_PRESET hidden
    C_STANDARD 11
    C_STANDARD_REQUIRED ON
    POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${library} PUBLIC ${folder} ${runtime})
  _conv_kernels_threads(${library} "${arg_THREADS}")
  if(UNIX)
    target_link_libraries(${library} PUBLIC m)
  endif()
  set(names "$<TARGET_PROPERTY:${library},CONV_KERNELS_NAMES>")
  string(CONCAT text "/* Made by add_conv_kernels(${library}); changes are lost. */\n"
    "#include \"conv_kernels.h\"\n"
    "$<$<BOOL:${names}>:#include \"$<JOIN:${names},.h\"\n#include \">.h\"\n>")
  file(GENERATE OUTPUT ${folder}/${library}.h CONTENT "${text}")
endfunction()

function(add_conv_kernel library name operator input weight)
  set(values STRIDE PADDING DILATION OUTPUT_PADDING GROUPS
    DATA_LAYOUT KERNEL_LAYOUT OUT_LAYOUT DTYPE OUT_DTYPE)
  cmake_parse_arguments(PARSE_ARGV 5 arg "PACKED" "${values}" "EPILOGUE")
  if(arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES)
    message(FATAL_ERROR
      "add_conv_kernel: ${name}: ${arg_UNPARSED_ARGUMENTS}${arg_KEYWORDS_MISSING_VALUES}: "
      "no such option, or without a value")
  endif()
  set(options "")
  foreach(option IN LISTS values)
    if(DEFINED arg_${option})
      string(TOLOWER ${option} spelled)
      string(REPLACE "_" "-" spelled ${spelled})
      list(APPEND options "--${spelled}=${arg_${option}}")
    endif()
  endforeach()
  if(arg_PACKED)
    list(APPEND options --packed)
  endif()
  if(arg_EPILOGUE)
    list(APPEND options --epilogue ${arg_EPILOGUE})
  endif()
  if(name STREQUAL library)
    message(FATAL_ERROR "add_conv_kernel: ${name} is the name of the library and of its header")
  endif()
  get_target_property(target ${library} CONV_KERNELS_TARGET)
  if(target)
    list(APPEND options "--target=${target}")
  endif()
  get_target_property(folder ${library} BINARY_DIR)
  set(folder ${folder}/${library})
  set(made ${folder}/${name}.o ${folder}/${name}.c ${folder}/${name}.h)
  get_property(python GLOBAL PROPERTY CONV_KERNELS_PYTHON)
  get_filename_component(packages ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../.. ABSOLUTE)
  file(GLOB_RECURSE package CONFIGURE_DEPENDS ${packages}/topi_ext/*.py)
  add_custom_command(
    OUTPUT ${made}
    COMMAND ${python} -m topi_ext.emit
      ${name} ${operator} ${input} ${weight} --out ${folder} ${options}
    WORKING_DIRECTORY ${packages} # where Python looks first: the package that this file belongs to
    DEPENDS ${package}
    COMMENT "Compiling kernel ${name}"
    VERBATIM)
  target_sources(${library} PRIVATE ${made})
  set_source_files_properties(${folder}/${name}.o PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set_property(TARGET ${library} APPEND PROPERTY CONV_KERNELS_NAMES ${name})
endfunction()
