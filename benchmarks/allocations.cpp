// Counts bytes of large allocations of the process it is preloaded into: those that give tensors, arenas and scratch memory, and
// none of the interpreter's (run Python with PYTHONMALLOC=malloc). Counted are allocations of at least 64-byte alignment, and
// any other of at least `LARGE` bytes, malloc or anonymous mmap, that the interpreter's own code does not ask for: its tables
// grow with what compilers keep about programs.
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr size_t LARGE = 1 << 20;
constexpr size_t ALIGNED = 64;
constexpr size_t SLOTS = 1 << 20;

struct Slot {
    uintptr_t address;
    size_t bytes;
};

Slot table[SLOTS];  // Open addressing; address 0 is free, 1 was freed.
std::atomic_flag busy = ATOMIC_FLAG_INIT;
int64_t live, peak;

struct Guard {
    Guard() { while (busy.test_and_set(std::memory_order_acquire)) {} }
    ~Guard() { busy.clear(std::memory_order_release); }
};

size_t slot_of(uintptr_t address) { return (address >> 6) * 0x9E3779B97F4A7C15ull >> 44; }

void add(void* pointer, size_t bytes) {
    if (pointer == nullptr) return;
    Guard guard;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    size_t at = slot_of(address);
    for (size_t tried = 0; tried < SLOTS; ++tried, at = (at + 1) % SLOTS) {
        if (table[at].address > 1) continue;
        table[at] = {address, bytes};
        live += static_cast<int64_t>(bytes);
        if (live > peak) peak = live;
        return;
    }
    std::abort();
}

void drop(void* pointer) {
    if (pointer == nullptr) return;
    Guard guard;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    size_t at = slot_of(address);
    for (size_t tried = 0; tried < SLOTS && table[at].address != 0; ++tried, at = (at + 1) % SLOTS) {
        if (table[at].address != address) continue;
        live -= static_cast<int64_t>(table[at].bytes);
        table[at] = {1, 0};
        return;
    }
}

bool of_interpreter(void* caller) {
    Dl_info info;
    if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return false;
    const char* slash = std::strrchr(info.dli_fname, '/');
    const char* file = slash == nullptr ? info.dli_fname : slash + 1;
    return std::strncmp(file, "python", 6) == 0 || std::strncmp(file, "libpython", 9) == 0;
}

// A macro: the return address is that of the function it stands in.
#define COUNT_LARGE(pointer, bytes) \
    if ((bytes) >= LARGE && !of_interpreter(__builtin_return_address(0))) add(pointer, bytes)

template <class F> F next(const char* name) { return reinterpret_cast<F>(dlsym(RTLD_NEXT, name)); }

}  // namespace

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

int64_t benchmark_live_bytes() {
    Guard guard;
    return live;
}

int64_t benchmark_peak_bytes() {
    Guard guard;
    return peak;
}

void benchmark_reset_peak() {
    Guard guard;
    peak = live;
}

void* malloc(size_t bytes) {
    void* pointer = __libc_malloc(bytes);
    COUNT_LARGE(pointer, bytes);
    return pointer;
}

void* calloc(size_t count, size_t each) {
    void* pointer = __libc_calloc(count, each);
    COUNT_LARGE(pointer, count * each);
    return pointer;
}

void free(void* pointer) {
    drop(pointer);
    __libc_free(pointer);
}

void* realloc(void* old, size_t bytes) {
    drop(old);
    void* pointer = __libc_realloc(old, bytes);
    COUNT_LARGE(pointer, bytes);
    return pointer;
}

void* memalign(size_t alignment, size_t bytes) {
    void* pointer = __libc_memalign(alignment, bytes);
    if (alignment >= ALIGNED || bytes >= LARGE) add(pointer, bytes);
    return pointer;
}

void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void** result, size_t alignment, size_t bytes) {
    void* pointer = memalign(alignment, bytes);
    if (pointer == nullptr && bytes != 0) return ENOMEM;
    *result = pointer;
    return 0;
}

// The name of the same function in programs built with large file offsets; Python's mmap module is one.
void* mmap64(void* wanted, size_t bytes, int protection, int flags, int file, off64_t offset) {
    static const auto real = next<void* (*)(void*, size_t, int, int, int, off64_t)>("mmap64");
    void* pointer = real(wanted, bytes, protection, flags, file, offset);
    if ((flags & MAP_ANONYMOUS) && (protection & PROT_WRITE) && bytes >= LARGE && pointer != MAP_FAILED) add(pointer, bytes);
    return pointer;
}

void* mmap(void* wanted, size_t bytes, int protection, int flags, int file, off_t offset) {
    return mmap64(wanted, bytes, protection, flags, file, offset);
}

int munmap(void* pointer, size_t bytes) {
    static const auto real = next<int (*)(void*, size_t)>("munmap");
    drop(pointer);
    return real(pointer, bytes);
}

}
