; SPDX-License-Identifier: Apache-2.0
; TVMBackendParallelLaunch of TVM's c_backend_api.h, on the team of an OpenMP runtime.
;
; A thread of which @team gives a number of threads runs the parallel regions of TVM's modules on
; OpenMP's team; every other thread runs them on TVM's pool, as before.  openmp.py puts the target
; and the addresses of @GOMP_parallel and of TVM's FFI before this text.

%environment = type { ptr, i32 }                              ; TVMParallelGroupEnv: no barrier, tasks
%region = type { %environment, ptr, ptr, i32, ptr }           ; lambda, closure, next task, error

@__TVMBackendParallelLaunch = linkonce dllexport global ptr null ; TVM's own, filled in at loading
@key = internal global i32 0
@name = private constant [27 x i8] c"__TVMBackendParallelLaunch\00"

declare i32 @pthread_key_create(ptr, ptr)
declare i32 @pthread_setspecific(i32, ptr)
declare ptr @pthread_getspecific(i32)

; Let TVM give this launch to each module that it loads from now on; return its address.
define i32 @__tvm_ffi_install(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %failed = call i32 @pthread_key_create(ptr @key, ptr null)
  %is_failed = icmp ne i32 %failed, 0
  br i1 %is_failed, label %fail, label %register
register:
  %to_register = load ptr, ptr @TVMFFIEnvModRegisterContextSymbol
  %code = call i32 %to_register(ptr @name, ptr @launch)
  call void @return(ptr @launch, ptr %result)
  ret i32 %code
fail:
  %to_raise = load ptr, ptr @TVMFFIErrorSetRaisedFromCStr
  call void %to_raise(ptr @kind, ptr @no_key)
  ret i32 -1
}

; Return the address of the launch that TVM has given to this module.
define i32 @__tvm_ffi_launch_of_modules(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %given = load ptr, ptr @__TVMBackendParallelLaunch
  call void @return(ptr %given, ptr %result)
  ret i32 0
}

define internal void @return(ptr %address, ptr %result) {
  %value = ptrtoint ptr %address to i64
  %at = getelementptr i8, ptr %result, i64 8
  store i64 %value, ptr %at
  store i32 1, ptr %result ; an integer, as a TVMFFIAny
  ret void
}

@kind = private constant [13 x i8] c"RuntimeError\00"
@no_key = private constant [30 x i8] c"pthread_key_create has failed\00"
@no_task = private constant [33 x i8] c"a parallel task has failed early\00"

; Set how many threads OpenMP runs the regions of this thread on; 0 stands for TVM's pool.
define i32 @__tvm_ffi_team(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %at = getelementptr i8, ptr %arguments, i64 8 ; the value of a TVMFFIAny
  %threads = load ptr, ptr %at
  %of_thread = load i32, ptr @key
  %code = call i32 @pthread_setspecific(i32 %of_thread, ptr %threads)
  ret i32 0
}

define internal i32 @launch(ptr %lambda, ptr %closure, i32 %asked) {
  %of_thread = load i32, ptr @key
  %value = call ptr @pthread_getspecific(i32 %of_thread)
  %whole = ptrtoint ptr %value to i64
  %threads = trunc i64 %whole to i32
  %is_pool = icmp eq i32 %threads, 0
  br i1 %is_pool, label %pool, label %team
pool:
  %stock = load ptr, ptr @__TVMBackendParallelLaunch
  %code = tail call i32 %stock(ptr %lambda, ptr %closure, i32 %asked)
  ret i32 %code
team:
  %region = alloca %region
  %is_free = icmp eq i32 %asked, 0
  %tasks = select i1 %is_free, i32 %threads, i32 %asked
  %tasks_at = getelementptr %region, ptr %region, i32 0, i32 0, i32 1
  %lambda_at = getelementptr %region, ptr %region, i32 0, i32 1
  %closure_at = getelementptr %region, ptr %region, i32 0, i32 2
  %error_at = getelementptr %region, ptr %region, i32 0, i32 4
  store %region zeroinitializer, ptr %region
  store i32 %tasks, ptr %tasks_at
  store ptr %lambda, ptr %lambda_at
  store ptr %closure, ptr %closure_at
  %is_one = icmp eq i32 %tasks, 1
  br i1 %is_one, label %alone, label %together
alone:
  call void @work(ptr %region)
  br label %end
together:
  %parallel = load ptr, ptr @GOMP_parallel
  call void %parallel(ptr @work, ptr %region, i32 %threads, i32 0)
  br label %end
end:
  %error = load ptr, ptr %error_at
  %is_right = icmp eq ptr %error, null
  br i1 %is_right, label %right, label %wrong
right:
  ret i32 0
wrong:
  %to_raise = load ptr, ptr @TVMFFIErrorSetRaised
  call void %to_raise(ptr %error)
  %to_free = load ptr, ptr @TVMFFIObjectDecRef
  call i32 %to_free(ptr %error)
  ret i32 -1
}

; A thread of the team: take tasks while there are any.  The team may be smaller than was asked for.
define internal void @work(ptr %region) {
  %tasks_at = getelementptr %region, ptr %region, i32 0, i32 0, i32 1
  %lambda_at = getelementptr %region, ptr %region, i32 0, i32 1
  %closure_at = getelementptr %region, ptr %region, i32 0, i32 2
  %next_at = getelementptr %region, ptr %region, i32 0, i32 3
  %error_at = getelementptr %region, ptr %region, i32 0, i32 4
  %raised = alloca ptr
  %tasks = load i32, ptr %tasks_at
  %lambda = load ptr, ptr %lambda_at
  %closure = load ptr, ptr %closure_at
  br label %take
take:
  %task = atomicrmw add ptr %next_at, i32 1 monotonic
  %is_task = icmp slt i32 %task, %tasks
  br i1 %is_task, label %run, label %end
run:
  %code = call i32 %lambda(i32 %task, ptr %region, ptr %closure)
  %is_right = icmp eq i32 %code, 0
  br i1 %is_right, label %take, label %wrong
wrong: ; the last error is the one that is raised
  store ptr null, ptr %raised
  %to_move = load ptr, ptr @TVMFFIErrorMoveFromRaised
  call void %to_move(ptr %raised)
  %given = load ptr, ptr %raised
  %is_given = icmp ne ptr %given, null
  br i1 %is_given, label %keep, label %name
name: ; memory that cannot be had is a code only
  %to_raise = load ptr, ptr @TVMFFIErrorSetRaisedFromCStr
  call void %to_raise(ptr @kind, ptr @no_task)
  call void %to_move(ptr %raised)
  br label %keep
keep:
  %error = load ptr, ptr %raised
  %before = atomicrmw xchg ptr %error_at, ptr %error acq_rel
  %is_first = icmp eq ptr %before, null
  br i1 %is_first, label %take, label %free
free:
  %to_free = load ptr, ptr @TVMFFIObjectDecRef
  call i32 %to_free(ptr %before)
  br label %take
end:
  ret void
}
