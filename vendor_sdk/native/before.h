// What an emitter's own C or C++ may use, and what it defines: see `Linker` (linker.py). No header of Python or torch is included.
// The few functions of CPython's stable interface are declared here; those of torch come as addresses.

#ifdef __cplusplus
#define C_NAMES_BEGIN extern "C" {
#define C_NAMES_END }
#else
#define C_NAMES_BEGIN
#define C_NAMES_END
#endif

typedef __INT32_TYPE__ i32;
typedef __INT64_TYPE__ i64;
typedef __UINT64_TYPE__ u64;
typedef struct Object Object;  // PyObject

C_NAMES_BEGIN
Object *PyCFunction_NewEx(const void *definition, Object *self, Object *module);
Object *PyTuple_GetItem(Object *, i64);
Object *PyTuple_New(i64);
i32 PyTuple_SetItem(Object *, i64, Object *);  // takes the reference
char *PyByteArray_AsString(Object *);
long long PyLong_AsLongLong(Object *);
Object *PyLong_FromLongLong(long long);
double PyFloat_AsDouble(Object *);
Object *PyErr_Occurred(void);
void PyErr_Clear(void);
void PyErr_SetString(Object *, const char *);
Object *PyErr_Format(Object *, const char *, ...);
Object *PyObject_CallFunctionObjArgs(Object *, ...);
Object *PyObject_CallObject(Object *, Object *arguments);
Object *PyObject_GetAttr(Object *, Object *name);
i64 PyObject_Size(Object *);
i32 PyObject_IsInstance(Object *, Object *);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
void Py_IncRef(Object *);
void Py_DecRef(Object *);
extern Object *PyExc_TypeError, *PyExc_RuntimeError, *PyExc_MemoryError;
extern Object _Py_NoneStruct;
C_NAMES_END

// Functions of torch's C interface, which return 0 where they succeed, and the layout of its Python objects.
typedef struct Torch {
  i32 (*data_ptr)(void *handle, void **);
  i32 (*strides)(void *handle, i64 **);
  i32 (*sizes)(void *handle, i64 **);
  i32 (*empty_strided)(i64 dims, const i64 *sizes, const i64 *strides, i32 dtype, i32 device_type, i32 device_index, void **handle);
  i32 (*from_blob)(void *data, i64 dims, const i64 *sizes, const i64 *strides, i64 offset, i32 dtype, i32 device_type, i32 device_index,
                   void **handle, i32 layout, const void *metadata, i64 metadata_bytes, void (*deleter)(void *, void *), void *context);
  i32 (*remove)(void *handle);
  Object *(*wrap)(void *handle);  // which is good for `remove` alone afterwards
  Object *tensor_type, *parameter_type;
  i64 handle_offset;  // from a Python object to the at::Tensor in it
} Torch;
static Torch torch;

typedef struct Spare {  // the longest of a step's; null where it has none
  char *memory;
  i64 bytes;
} Spare;

typedef struct Result {  // a contiguous tensor to allocate
  i64 dims;
  const i64 *sizes, *strides;
  i32 dtype;
  i64 bytes;
  i32 passing;  // its memory is to be kept for nobody when it dies
} Result;

// DONE; FAILED, and Python's error is set; or ASIDE: this call is made from Python (`Linker.launch_from_python`).
typedef enum Outcome { DONE, FAILED, ASIDE } Outcome;

static Object *failed(const char *what) {
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, what);
  return 0;
}
