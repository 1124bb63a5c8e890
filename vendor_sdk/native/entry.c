// Programs: runs of launches as one callable of Python. Before this stand before.h and the emitter's text, which says how a
// launch is made and where results come from. All is C and C++ alike.
//
// A program is a table of int64, read front to back at every call; linker.py writes it, and says what is where. Until its first
// word is set, words of launches are missing: `complete` waits for compilers and writes them, or leaves this call to `aside`, Python's way.

enum { ARENA = 0, TABLE = 1, INPUT = 2, RESULT = 3 };  // where a buffer is
enum { CONSTANT = 0, ARGUMENT = 1 };                   // what a number is
enum { READY = 0, CONTEXT = 1, HEAD = 9 };             // words of the table
enum { WORDS = 0, AS_TRACED = 1, FAIL = 2, COMPLETE = 3, ASIDE_ENTRY = 4 };  // items of `self`

static inline Object *type_of(Object *object) { return ((Object **)object)[1]; }
static inline void *handle_of(Object *tensor) { return (char *)tensor + torch.handle_offset; }

static i32 is_tensor(Object *object) {
  Object *type = type_of(object);
  return type == torch.tensor_type || type == torch.parameter_type || PyObject_IsInstance(object, torch.tensor_type) == 1;
}

// Reads `count` numbers, each a constant or an argument of the call.
static const i64 *read_numbers(const i64 *p, i64 count, const i64 *arguments, i64 *out) {
  for (i64 i = 0; i < count; ++i, p += 2) out[i] = p[0] == ARGUMENT ? arguments[p[1]] : p[1];
  return p;
}

// Where a buffer is: three words of the table.
static inline char *address_of(const i64 *p, char *arena, const i64 *offsets, void *const *inputs, void *const *results) {
  switch (p[0]) {
    case ARENA: return arena + p[2];
    case TABLE: return arena + offsets[p[2]];
    case INPUT: return (char *)inputs[p[1]] + p[2];
    default: return (char *)results[p[1]] + p[2];
  }
}

// Whether a tensor lies as the kernels read it.
static i32 lies_so(void *handle, const i64 *expected, i64 dims) {
  i64 *sizes = 0, *strides = 0;
  if (torch.sizes(handle, &sizes) || torch.strides(handle, &strides)) return 0;
  i32 same = 1;
  for (i64 d = 0; d < dims; ++d) {
    if (sizes[d] == 0) return 1;
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
  if (!tuple) return 0;
  Object *answer = PyObject_CallFunctionObjArgs(as_traced, tensor, tuple, (Object *)0);
  Py_DecRef(tuple);
  if (answer && !is_tensor(answer)) {
    Py_DecRef(answer);
    return failed("a tensor was expected");
  }
  return answer;
}

// References that a call holds.
typedef struct Held {
  Object **objects;
  i64 count;
} Held;

static void let_go(Held *held) {
  while (held->count) Py_DecRef(held->objects[--held->count]);
}

// What `fail(step, status)` raises.
static Outcome fail(Object *self, i64 step, i32 status) {
  Object *number = PyLong_FromLongLong(step), *why = PyLong_FromLongLong(status);
  Object *nothing = PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, FAIL), number, why, (Object *)0);
  Py_DecRef(number);
  Py_DecRef(why);
  if (nothing) Py_DecRef(nothing);
  failed("a kernel failed");
  return FAILED;
}

// A call with `arguments` from the first input on. `copies` and `made` are its own, and stay when it fails.
static Outcome run(Object *self, const i64 *p, char *arena, const i64 *offsets, Object *const *arguments, Held *copies, Held *made) {
  const i64 context = p[CONTEXT], input_count = p[2], result_count = p[3], number_count = p[4], step_count = p[5];
  const i64 most_buffers = p[6], most_numbers = p[7], release = p[8];
  p += HEAD;
  i64 *const numbers = (i64 *)__builtin_alloca((number_count + 1) * sizeof(i64));
  for (i64 i = 0; i < number_count; ++i, ++p) {
    Object *const number = arguments[input_count + i];
    if (*p) {
      const double value = PyFloat_AsDouble(number);
      __builtin_memcpy(&numbers[i], &value, sizeof value);
    } else {
      numbers[i] = PyLong_AsLongLong(number);
    }
  }
  if ((number_count || !arena) && PyErr_Occurred()) return FAILED;

  void **const inputs = (void **)__builtin_alloca((input_count + 1) * sizeof(void *));
  u64 bits = 0;
  for (i64 i = 0; i < input_count; ++i) {
    Object *tensor = arguments[i];
    if (!is_tensor(tensor)) {
      failed("a linked program got something else than a tensor");
      return FAILED;
    }
    const i64 dims = *p++;
    if (dims > 0) {
      i64 *expected = (i64 *)__builtin_alloca(dims * sizeof(i64));
      p = read_numbers(p, dims, numbers, expected);
      if (!lies_so(handle_of(tensor), expected, dims)) {
        if (!(tensor = ask(PyTuple_GetItem(self, AS_TRACED), tensor, expected, dims))) return FAILED;
        copies->objects[copies->count++] = tensor;
      }
    }
    if (torch.data_ptr(handle_of(tensor), &inputs[i])) {
      failed("an input has no memory");
      return FAILED;
    }
    bits |= (u64)inputs[i];
  }
  Call call;
  Outcome outcome = prepare_call(&call, context, bits);
  if (outcome != DONE) return outcome;

  void **const results = (void **)__builtin_alloca((result_count + 1) * sizeof(void *));
  for (i64 i = 0; i < result_count; ++i) {
    const i32 dtype = (i32)*p++;
    const i64 itemsize = *p++, passing = *p++, dims = *p++;
    i64 *sizes = (i64 *)__builtin_alloca((2 * dims + 1) * sizeof(i64)), *strides = sizes + dims;
    p = read_numbers(p, dims, numbers, sizes);
    i64 step = 1, bytes = itemsize;
    for (i64 d = dims - 1; d >= 0; --d) {
      strides[d] = step;
      step *= sizes[d] > 1 ? sizes[d] : 1;
      bytes *= sizes[d];
    }
    const Result result = {dims, sizes, strides, dtype, bytes, (i32)passing};
    void *handle = 0;
    outcome = allocate(&call, &result, &handle, &results[i]);
    if (outcome != DONE) return outcome;
    Object *tensor = torch.wrap(handle);
    torch.remove(handle);
    if (!tensor) return FAILED;
    made->objects[made->count++] = tensor;
  }

  void **const buffers = (void **)__builtin_alloca((most_buffers + 1) * sizeof(void *));
  i64 *const values = (i64 *)__builtin_alloca((most_numbers + 1) * sizeof(i64));
  void *const thread = release ? PyEval_SaveThread() : 0;
  i64 step = 0;
  i32 status = 0;
  for (; step < step_count; ++step) {
    const i64 word = *p++, buffer_count = *p++, value_count = *p++;
    for (i64 i = 0; i < buffer_count; ++i, p += 3) buffers[i] = address_of(p, arena, offsets, inputs, results);
    p = read_numbers(p, value_count, numbers, values);
    Spare spare = {0, 0};
    for (i64 left = *p++; left; --left, p += 3) {
      i64 bytes;
      p = read_numbers(p, 1, numbers, &bytes);
      if (bytes > spare.bytes) {
        spare.memory = address_of(p, arena, offsets, inputs, results);
        spare.bytes = bytes;
      }
    }
    if ((status = launch(&call, word, buffers, buffer_count, values, value_count, spare))) break;
  }
  if (thread) PyEval_RestoreThread(thread);
  return status ? fail(self, step, status) : DONE;
}

static Object *answer(Held *made) {
  const i64 count = made->count;
  if (count == 0) {
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
  }
  made->count = 0;
  if (count == 1) return made->objects[0];
  Object *tuple = PyTuple_New(count);
  for (i64 i = 0; tuple && i < count; ++i) PyTuple_SetItem(tuple, i, made->objects[i]);
  return tuple;
}

// The same call by `aside`.
static Object *made_aside(Object *self, Object *const *arguments, i64 given) {
  Object *tuple = PyTuple_New(given);
  if (!tuple) return 0;
  for (i64 i = 0; i < given; ++i) {
    Py_IncRef(arguments[i]);
    PyTuple_SetItem(tuple, i, arguments[i]);
  }
  Object *done = PyObject_CallObject(PyTuple_GetItem(self, ASIDE_ENTRY), tuple);
  Py_DecRef(tuple);
  return done;
}

// entry(arena, offsets, *inputs, *numbers)
static Object *call(Object *self, Object *const *arguments, i64 given) {
  const i64 *const words = (const i64 *)PyByteArray_AsString(PyTuple_GetItem(self, WORDS));
  const i64 input_count = words[2], result_count = words[3], number_count = words[4];
  if (given != 2 + input_count + number_count) {
    PyErr_SetString(PyExc_TypeError, "a linked program got the wrong number of arguments");
    return 0;
  }
  if (!words[READY]) {
    Object *done = PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, COMPLETE), (Object *)0);
    if (!done) return 0;
    Py_DecRef(done);
    if (!words[READY]) return made_aside(self, arguments, given);
  }
  char *const arena = (char *)PyLong_AsLongLong(arguments[0]);
  const i64 *const offsets = (const i64 *)PyLong_AsLongLong(arguments[1]);
  Held copies = {(Object **)__builtin_alloca((input_count + 1) * sizeof(Object *)), 0};
  Held made = {(Object **)__builtin_alloca((result_count + 1) * sizeof(Object *)), 0};
  const Outcome outcome = run(self, words, arena, offsets, arguments + 2, &copies, &made);
  let_go(&copies);
  if (outcome == DONE) return answer(&made);
  let_go(&made);
  return outcome == FAILED ? 0 : made_aside(self, arguments, given);
}

typedef struct Definition {  // PyMethodDef
  const char *name;
  Object *(*function)(Object *, Object *const *, i64);
  i32 flags;
  const char *text;
} Definition;
static const Definition definition = {"entry", call, 0x80 /* METH_FASTCALL */, "A linked program."};

C_NAMES_BEGIN
void setup(const Torch *given) { torch = *given; }
// `self` is a tuple: the table as a bytearray, as_traced, fail, complete, aside.
Object *make(Object *self) { return PyCFunction_NewEx(&definition, self, 0); }
C_NAMES_END
