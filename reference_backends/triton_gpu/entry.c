// How a program launches Triton's kernels, and where its results lie: between before.h and entry.c of the SDK.

typedef unsigned int u32;

// What native.py hands over: CUDA's driver, torch's current device and stream, and who listens to Triton's launches.
typedef struct Gpu {
  i32 (*launch_kernel)(void *function, u32 grid_x, u32 grid_y, u32 grid_z, u32 block_x, u32 block_y, u32 block_z, u32 shared_bytes,
                       void *stream, void **arguments, void **extra);
  i32 (*current_context)(void **context);
  i32 (*current_device)(i32 *index);
  i32 (*current_stream)(i32 device, void **stream);
  Object *settings, *entering, *leaving, *calls;  // Triton's, and names of its attributes
  i64 device_type;
} Gpu;
static Gpu gpu;

enum { BYTE = 0 /* torch.uint8 */, VECTOR = 16, NO_SCRATCH = -1, SCRATCHES = 2 };

typedef struct Call {
  void *stream;
  i32 device;
} Call;

// Whether a function of Python wants to hear of launches: a hook that is not None, nor a chain of none.
static i32 listens(Object *name) {
  Object *const hook = PyObject_GetAttr(gpu.settings, name);
  i32 heard = hook != &_Py_NoneStruct;
  if (hook && heard) {
    Object *const chained = PyObject_GetAttr(hook, gpu.calls);
    heard = !chained || PyObject_Size(chained) != 0;
    if (chained) Py_DecRef(chained);
  }
  if (hook) Py_DecRef(hook);
  PyErr_Clear();
  return heard;
}

// Kernels are compiled for buffers that begin with a vector, and loaded on one device. The current one has no context where this
// thread has not used it yet.
static Outcome prepare_call(Call *call, i64 device, u64 bits) {
  void *context = 0;
  if (bits % VECTOR || gpu.current_device(&call->device) || call->device != device) return ASIDE;
  if (gpu.current_context(&context) || !context || gpu.current_stream(call->device, &call->stream)) return ASIDE;
  return listens(gpu.entering) || listens(gpu.leaving) ? ASIDE : DONE;
}

// Where there is no memory, Python's way says so, as torch does.
static Outcome allocate(const Call *call, const Result *result, void **handle, void **data) {
  const i32 type = (i32)gpu.device_type;
  const i32 none =
      torch.empty_strided(result->dims, result->sizes, result->strides, result->dtype, type, call->device, handle);
  if (none) return ASIDE;
  if (!torch.data_ptr(*handle, data)) return DONE;
  torch.remove(*handle);
  return ASIDE;
}

// `word` is the address of a table of int64: bytes of scratch memory, how many buffers lie in it and where, how many functions
// there are, and for each its handle, programs, threads of a program and bytes of shared memory. All get the same arguments:
// buffers, those of scratch memory, addresses of seeds, and none of the memory that Triton's own tools want.
static i32 launch(const Call *call, i64 word, void *const *buffers, i64 buffer_count, const i64 *seeds, i64 seed_count, Spare spare) {
  const i64 *p = (const i64 *)word;
  const i64 bytes = *p++, place_count = *p++, one = 1;
  const i64 count = buffer_count + place_count + seed_count + SCRATCHES;
  i64 *const values = (i64 *)__builtin_alloca(count * sizeof(i64));
  void **const arguments = (void **)__builtin_alloca(count * sizeof(void *));
  void *handle = 0, *scratch = spare.memory;
  if (bytes > spare.bytes) {
    if (torch.empty_strided(1, &bytes, &one, BYTE, (i32)gpu.device_type, call->device, &handle)) return NO_SCRATCH;
    if (torch.data_ptr(handle, &scratch)) scratch = 0;
  }
  i64 n = 0;
  for (i64 i = 0; i < buffer_count; ++i) values[n++] = (i64)buffers[i];
  for (i64 i = 0; i < place_count; ++i) values[n++] = (i64)scratch + *p++;
  for (i64 i = 0; i < seed_count; ++i) values[n++] = seeds[i];
  for (i64 i = 0; i < SCRATCHES; ++i) values[n++] = 0;
  for (i64 i = 0; i < count; ++i) arguments[i] = &values[i];
  i32 status = bytes && !scratch ? NO_SCRATCH : 0;
  for (i64 left = *p++; left && !status; --left, p += 4) {
    if (p[1]) status = gpu.launch_kernel((void *)p[0], (u32)p[1], 1, 1, (u32)p[2], 1, 1, (u32)p[3], call->stream, arguments, 0);
  }
  if (handle) torch.remove(handle);  // what was launched is done before the stream gives this memory to others
  return status;
}

C_NAMES_BEGIN
void setup_gpu(const Gpu *given) { gpu = *given; }
C_NAMES_END
