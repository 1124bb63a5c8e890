// Programs: runs of launches as one callable of Python. No header of Python or torch is included: the few functions of
// CPython's stable interface are declared here, those of torch come as addresses from program.py, which also checks where a
// torch.Tensor keeps its at::Tensor.
//
// A program is a table of int64, read front to back at every call; program.py writes it, and says what is where. Until its first
// word is set the addresses of the kernels are missing: `complete` waits for their compilers and writes them.

typedef struct Object Object;

extern "C" {
Object *PyCFunction_NewEx(const void *definition, Object *self, Object *module);
Object *PyTuple_GetItem(Object *, i64);
Object *PyTuple_New(i64);
i32 PyTuple_SetItem(Object *, i64, Object *);  // takes the reference
char *PyByteArray_AsString(Object *);
long long PyLong_AsLongLong(Object *);
Object *PyLong_FromLongLong(long long);
double PyFloat_AsDouble(Object *);
Object *PyErr_Occurred(void);
void PyErr_SetString(Object *, const char *);
Object *PyObject_CallFunctionObjArgs(Object *, ...);
i32 PyObject_IsInstance(Object *, Object *);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
void Py_IncRef(Object *);
void Py_DecRef(Object *);
extern Object *PyExc_TypeError, *PyExc_RuntimeError, *PyExc_MemoryError;
Object *PyErr_Format(Object *, const char *, ...);
extern Object _Py_NoneStruct;
}

// What program.py hands over: functions of torch and the layout of its Python objects.
struct Torch {
  i32 (*data_ptr)(void *handle, void **);
  i32 (*strides)(void *handle, i64 **);
  i32 (*sizes)(void *handle, i64 **);
  i32 (*empty_strided)(i64 dims, const i64 *sizes, const i64 *strides, i32 dtype, i32 device_type, i32 device_index, void **handle);
  i32 (*from_blob)(void *data, i64 dims, const i64 *sizes, const i64 *strides, i64 offset, i32 dtype, i32 device_type, i32 device_index,
                   void **handle, i32 layout, const void *metadata, i64 metadata_bytes, void (*deleter)(void *, void *), void *context);
  i32 (*remove)(void *handle);
  Object *(*wrap)(void *handle);
  Object *tensor_type, *parameter_type;
  i64 handle_offset;  // from a Python object to the at::Tensor in it
};
static Torch torch;

struct Spare {  // As in base.h.
  char *memory;
  i64 bytes;
};
typedef i32 (*Flat)(void *const *buffers, const i64 *numbers, Spare spare);

enum Base : i64 { ARENA = 0, TABLE = 1, INPUT = 2, RESULT = 3 };
enum Number : i64 { CONSTANT = 0, ARGUMENT = 1 };

static inline Object *type_of(Object *object) { return ((Object **)object)[1]; }
static inline void *handle_of(Object *tensor) { return (char *)tensor + torch.handle_offset; }

static Object *failed(const char *what) {
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, what);
  return nullptr;
}

static Object *without_memory(i64 bytes) {
  if (!PyErr_Occurred()) PyErr_Format(PyExc_MemoryError, "no %lld bytes of memory for a result", (long long)bytes);
  return nullptr;
}

static bool is_tensor(Object *object) {
  Object *type = type_of(object);
  return type == torch.tensor_type || type == torch.parameter_type || PyObject_IsInstance(object, torch.tensor_type) == 1;
}

// Reads `count` numbers, each a constant or an argument of the call.
static const i64 *read_numbers(const i64 *p, i64 count, const i64 *arguments, i64 *out) {
  for (i64 i = 0; i < count; ++i, p += 2) out[i] = p[0] == ARGUMENT ? arguments[p[1]] : p[1];
  return p;
}

// Where a buffer is: three words of the table.
static inline char *address_of(const i64 *p, char *arena, const i64 *table, void *const *inputs, void *const *results) {
  switch (p[0]) {
    case ARENA: return arena + p[2];
    case TABLE: return arena + table[p[2]];
    case INPUT: return (char *)inputs[p[1]] + p[2];
    default: return (char *)results[p[1]] + p[2];
  }
}

// Whether a tensor lies as the kernels read it.
static bool lies_so(void *handle, const i64 *expected, i64 dims) {
  i64 *sizes = nullptr, *strides = nullptr;
  if (torch.sizes(handle, &sizes) || torch.strides(handle, &strides)) return false;
  bool same = true;
  for (i64 d = 0; d < dims; ++d) {
    if (sizes[d] == 0) return true;
    same &= sizes[d] == 1 || strides[d] == expected[d];
  }
  return same;
}

static Object *tuple_of(const i64 *values, i64 count) {
  Object *tuple = PyTuple_New(count);
  for (i64 i = 0; tuple && i < count; ++i) PyTuple_SetItem(tuple, i, PyLong_FromLongLong(values[i]));
  return tuple;
}

// `as_traced(tensor, strides)`.
static Object *ask(Object *as_traced, Object *tensor, const i64 *strides, i64 dims) {
  Object *tuple = tuple_of(strides, dims);
  if (!tuple) return nullptr;
  Object *answer = PyObject_CallFunctionObjArgs(as_traced, tensor, tuple, nullptr);
  Py_DecRef(tuple);
  if (answer && !is_tensor(answer)) {
    Py_DecRef(answer);
    return failed("a tensor was expected");
  }
  return answer;
}

static void drop_block(void *, void *block) { give_block((Block *)block); }

// A tensor of Python, contiguous and uninitialised; large ones over a block. `data` is where its elements are.
static Object *new_result(i64 dims, const i64 *sizes, const i64 *strides, i32 dtype, i64 bytes, i64 large, void **data) {
  void *handle = nullptr;
  Block *block = nullptr;
  if (bytes >= large) {
    block = take_block(bytes);
    if (!block) return without_memory(bytes);
    *data = block->memory;
    if (torch.from_blob(block->memory, dims, sizes, strides, 0, dtype, 0, -1, &handle, 0, nullptr, 0, drop_block, block)) {
      give_block(block);
      return failed("no tensor for a result");
    }
  } else if (torch.empty_strided(dims, sizes, strides, dtype, 0, -1, &handle) || torch.data_ptr(handle, data)) {
    return without_memory(bytes);
  }
  Object *tensor = torch.wrap(handle);
  torch.remove(handle);
  return tensor;
}

// What a call holds; its end lets go of it.
struct Held {
  Object **objects;
  i64 count = 0;
  explicit Held(Object **room) : objects(room) {}
  ~Held() {
    for (i64 i = 0; i < count; ++i) Py_DecRef(objects[i]);
  }
  void add(Object *object) { objects[count++] = object; }
};

// entry(arena, offsets, *inputs, *numbers)
static Object *call(Object *self, Object *const *arguments, i64 given) {
  const i64 *p = (const i64 *)PyByteArray_AsString(PyTuple_GetItem(self, 0));
  if (!*p++) {
    Object *done = PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, 3), nullptr);
    if (!done) return nullptr;
    Py_DecRef(done);
  }
  const i64 input_count = *p++, result_count = *p++, number_count = *p++, step_count = *p++;
  const i64 most_buffers = *p++, most_numbers = *p++, release = *p++, large = *p++;
  Object *const as_traced = PyTuple_GetItem(self, 1);
  if (given != 2 + input_count + number_count) {
    PyErr_SetString(PyExc_TypeError, "a linked program got the wrong number of arguments");
    return nullptr;
  }
  const long long arena = PyLong_AsLongLong(arguments[0]);
  const i64 *const table = (const i64 *)PyLong_AsLongLong(arguments[1]);

  i64 *const numbers = (i64 *)__builtin_alloca((number_count + 1) * sizeof(i64));
  Object *const *given_numbers = arguments + 2 + input_count;
  for (i64 i = 0; i < number_count; ++i, ++p) {
    if (*p) {
      const double value = PyFloat_AsDouble(given_numbers[i]);
      __builtin_memcpy(&numbers[i], &value, sizeof value);
    } else {
      numbers[i] = PyLong_AsLongLong(given_numbers[i]);
    }
  }
  if ((number_count || !arena) && PyErr_Occurred()) return nullptr;

  void **const inputs = (void **)__builtin_alloca((input_count + 1) * sizeof(void *));
  void **const results = (void **)__builtin_alloca((result_count + 1) * sizeof(void *));
  Held restrided((Object **)__builtin_alloca((input_count + 1) * sizeof(Object *)));
  Held made((Object **)__builtin_alloca((result_count + 1) * sizeof(Object *)));
  for (i64 i = 0; i < input_count; ++i) {
    Object *tensor = arguments[2 + i];
    if (!is_tensor(tensor)) return failed("a linked program got something else than a tensor");
    const i64 dims = *p++;
    if (dims > 0) {
      i64 *expected = (i64 *)__builtin_alloca(dims * sizeof(i64));
      p = read_numbers(p, dims, numbers, expected);
      if (!lies_so(handle_of(tensor), expected, dims)) {
        if (!(tensor = ask(as_traced, tensor, expected, dims))) return nullptr;
        restrided.add(tensor);
      }
    }
    if (torch.data_ptr(handle_of(tensor), &inputs[i])) return failed("an input has no memory");
  }
  for (i64 i = 0; i < result_count; ++i) {
    const i64 dtype = *p++, itemsize = *p++, dims = *p++;
    i64 *sizes = (i64 *)__builtin_alloca((2 * dims + 1) * sizeof(i64)), *strides = sizes + dims;
    p = read_numbers(p, dims, numbers, sizes);
    i64 step = 1, bytes = itemsize;
    for (i64 d = dims - 1; d >= 0; --d) {
      strides[d] = step;
      step *= sizes[d] > 1 ? sizes[d] : 1;
      bytes *= sizes[d];
    }
    Object *tensor = new_result(dims, sizes, strides, (i32)dtype, bytes, large, &results[i]);
    if (!tensor) return nullptr;
    made.add(tensor);
  }

  void **const buffers = (void **)__builtin_alloca((most_buffers + 1) * sizeof(void *));
  i64 *const values = (i64 *)__builtin_alloca((most_numbers + 1) * sizeof(i64));
  void *const thread = release ? PyEval_SaveThread() : nullptr;
  i64 step = 0;
  i32 status = 0;
  for (; step < step_count; ++step) {
    const Flat kernel = (Flat)*p++;
    const i64 buffer_count = *p++, value_count = *p++;
    for (i64 i = 0; i < buffer_count; ++i, p += 3) buffers[i] = address_of(p, (char *)arena, table, inputs, results);
    p = read_numbers(p, value_count, numbers, values);
    Spare spare = {};  // The longest of those that there are.
    for (i64 left = *p++; left; --left, p += 3) {
      i64 bytes;
      p = read_numbers(p, 1, numbers, &bytes);
      if (bytes > spare.bytes) spare = {address_of(p, (char *)arena, table, inputs, results), bytes};
    }
    if ((status = kernel(buffers, values, spare))) break;
  }
  if (thread) PyEval_RestoreThread(thread);
  if (status) {
    Object *number = PyLong_FromLongLong(step), *why = PyLong_FromLongLong(status);
    Object *nothing = PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, 2), number, why, nullptr);
    Py_DecRef(number);
    Py_DecRef(why);
    if (nothing) Py_DecRef(nothing);
    return failed("a kernel failed");
  }
  if (result_count == 1) {
    made.count = 0;
    return made.objects[0];
  }
  if (result_count == 0) {
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
  }
  Object *tuple = PyTuple_New(result_count);
  if (!tuple) return nullptr;
  for (i64 i = 0; i < result_count; ++i) PyTuple_SetItem(tuple, i, made.objects[i]);
  made.count = 0;
  return tuple;
}

struct Definition {  // PyMethodDef
  const char *name;
  Object *(*function)(Object *, Object *const *, i64);
  i32 flags;
  const char *text;
};
static const Definition definition = {"entry", call, 0x80 /* METH_FASTCALL */, "A linked program."};

extern "C" void setup(const Torch *given) { torch = *given; }
extern "C" i64 release() { return free_idle_blocks(0); }

// `self` is a tuple: the table as a bytearray, as_traced, fail, complete.
extern "C" Object *make(Object *self) { return PyCFunction_NewEx(&definition, self, nullptr); }
