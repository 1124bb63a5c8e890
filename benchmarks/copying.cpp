// Copies `bytes` with stores that bypass the caches. Both addresses are multiples of 64, `bytes` too.
#include <cstddef>
#include <cstdint>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

extern "C" int nontemporal_copy(char* to, const char* from, int64_t bytes, int threads) {
    const int64_t lines = bytes / 64;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t line = 0; line < lines; ++line) {
        char* out = to + 64 * line;
        const char* in = from + 64 * line;
#if defined(__AVX512F__)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(out), _mm512_load_si512(in));
#elif defined(__SSE2__)
        for (int part = 0; part < 64; part += 16)
            _mm_stream_si128(reinterpret_cast<__m128i*>(out + part), _mm_load_si128(reinterpret_cast<const __m128i*>(in + part)));
#elif defined(__aarch64__)
        for (int part = 0; part < 64; part += 32)
            asm volatile("ldp q0, q1, [%1]\n\tstnp q0, q1, [%0]" ::"r"(out + part), "r"(in + part) : "v0", "v1", "memory");
#else
        return 1;
#endif
    }
#if defined(__SSE2__)
    _mm_sfence();
#endif
    return 0;
}
