// Memory of large results: what one result has let go, a later one gets, with its pages still mapped. A page that is touched for
// the first time costs the processor more than the arithmetic on it, and the C library returns large allocations to the system.
//
// A block comes back when the last reference to its storage goes, on any thread and without Python's lock.

typedef __INT64_TYPE__ i64;
typedef __INT32_TYPE__ i32;
extern "C" {
void *aligned_alloc(__SIZE_TYPE__, __SIZE_TYPE__) noexcept;
i32 madvise(void *, __SIZE_TYPE__, i32) noexcept;
}

enum : i64 {
  HUGE_PAGE = 1 << 21,
  KEPT_IDLE = 1 << 30,  // idle bytes; the longest idle go first
  PATIENCE = 1 << 14,   // attempts at the lock; whoever has it may have been forked away from
};

struct Block {
  char *memory;
  i64 bytes;
  Block *newer, *older;  // while idle
};

static struct {
  volatile char busy;
  Block *newest, *oldest;
  i64 bytes;
} idle_blocks;

static bool lock_blocks() {
  for (i64 tried = 0; tried < PATIENCE; ++tried) {
    if (!__atomic_exchange_n(&idle_blocks.busy, 1, __ATOMIC_ACQUIRE)) return true;
  }
  return false;
}
static void unlock_blocks() { __atomic_store_n(&idle_blocks.busy, 0, __ATOMIC_RELEASE); }

static void unlink_block(Block *block) {
  (block->newer ? block->newer->older : idle_blocks.newest) = block->older;
  (block->older ? block->older->newer : idle_blocks.oldest) = block->newer;
  idle_blocks.bytes -= block->bytes;
}

static void free_block(Block *block) {
  __builtin_free(block->memory);
  __builtin_free(block);
}

// Frees the longest idle until at most `kept` bytes are; how many that gives back.
static i64 free_idle_blocks(i64 kept) {
  i64 freed = 0;
  while (lock_blocks()) {
    Block *oldest = idle_blocks.bytes > kept ? idle_blocks.oldest : nullptr;
    if (oldest) unlink_block(oldest);
    unlock_blocks();
    if (!oldest) break;
    freed += oldest->bytes;
    free_block(oldest);
  }
  return freed;
}

// A block of at least `bytes`, and at most an eighth more than a fresh one would have; null where there is no memory.
static Block *take_block(i64 bytes) {
  i64 step = 4096;
  while (step < HUGE_PAGE && step * 512 <= bytes) step *= 2;
  const i64 size = (bytes + step - 1) / step * step;
  Block *best = nullptr;
  if (lock_blocks()) {
    for (Block *block = idle_blocks.newest; block; block = block->older) {
      const bool fits = block->bytes >= size && block->bytes <= size + size / 8;
      if (fits && (!best || block->bytes < best->bytes)) best = block;
      if (fits && block->bytes == size) break;
    }
    if (best) unlink_block(best);
    unlock_blocks();
  }
  if (best) return best;
  const bool huge = size >= HUGE_PAGE;
  char *memory = (char *)aligned_alloc(huge ? HUGE_PAGE : 4096, size);
  if (!memory && free_idle_blocks(0)) memory = (char *)aligned_alloc(huge ? HUGE_PAGE : 4096, size);
  if (!memory) return nullptr;
  Block *const block = (Block *)__builtin_malloc(sizeof(Block));
  if (!block) {
    __builtin_free(memory);
    return nullptr;
  }
  *block = {memory, size, nullptr, nullptr};
#if defined(__linux__)
  if (huge) madvise(memory, size, 14 /* MADV_HUGEPAGE */);
#endif
  return block;
}

static void give_block(Block *block) {
  if (!lock_blocks()) return free_block(block);
  block->newer = nullptr;
  block->older = idle_blocks.newest;
  (idle_blocks.newest ? idle_blocks.newest->newer : idle_blocks.oldest) = block;
  idle_blocks.newest = block;
  idle_blocks.bytes += block->bytes;
  const bool many = idle_blocks.bytes > KEPT_IDLE;
  unlock_blocks();
  if (many) free_idle_blocks(KEPT_IDLE);
}
