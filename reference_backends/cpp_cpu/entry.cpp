// How a program calls kernels, and where its results lie: between before.h and entry.c of the SDK, after blocks.h.

enum : i64 { LARGE = 1 << 17 };  // bytes of a result from which it lies in a block: the C library keeps smaller ones, and passing ones, itself

typedef i32 (*Flat)(void *const *buffers, const i64 *numbers, Spare spare);

struct Call {};

static Outcome prepare_call(Call *, i64, u64) { return DONE; }

static Outcome without_memory(i64 bytes) {
  if (!PyErr_Occurred()) PyErr_Format(PyExc_MemoryError, "no %lld bytes of memory for a result", (long long)bytes);
  return FAILED;
}

static void drop_block(void *, void *block) { give_block((Block *)block); }

static Outcome allocate(const Call *, const Result *result, void **handle, void **data) {
  if (result->bytes < LARGE || result->passing) {
    const i32 cpu = 0, none = -1;
    const bool made = !torch.empty_strided(result->dims, result->sizes, result->strides, result->dtype, cpu, none, handle);
    return made && !torch.data_ptr(*handle, data) ? DONE : without_memory(result->bytes);
  }
  Block *const block = take_block(result->bytes);
  if (!block) return without_memory(result->bytes);
  *data = block->memory;
  if (torch.from_blob(block->memory, result->dims, result->sizes, result->strides, 0, result->dtype, 0, -1, handle, 0, nullptr, 0,
                      drop_block, block)) {
    give_block(block);
    failed("no tensor for a result");
    return FAILED;
  }
  return DONE;
}

static i32 launch(const Call *, i64 word, void *const *buffers, i64, const i64 *numbers, i64, Spare spare) {
  return ((Flat)word)(buffers, numbers, spare);
}

extern "C" i64 release() { return free_idle_blocks(0); }
