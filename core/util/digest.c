/* Digest: SHA-256 as FIPS 180-4 describes it, one block of 64 bytes at a time. Pure; any thread.
 * Tests: tests/unit/test_util.c (the standard's examples and hashes made by Python) */
#include "util/digest.h"

#include <string.h>

enum { BLOCK = 64 };

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t ror(uint32_t x, unsigned n)
{
    return x >> n | x << (32 - n);
}

static uint32_t load_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void add_block(uint32_t h[8], const uint8_t *block)
{
    uint32_t w[64], s[8];

    for (int i = 0; i < 16; i++)
        w[i] = load_be32(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];

        w[i] = w[i - 16] + (ror(a, 7) ^ ror(a, 18) ^ a >> 3) + w[i - 7] + (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t t1 =
            s[7] + (ror(s[4], 6) ^ ror(s[4], 11) ^ ror(s[4], 25)) + choice + round_constants[i] + w[i];
        uint32_t t2 = (ror(s[0], 2) ^ ror(s[0], 13) ^ ror(s[0], 22)) + majority;

        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += s[i];
}

void digest_sha256(const void *data, size_t len, uint8_t ret_digest[DIGEST_LEN])
{
    uint32_t h[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    uint8_t tail[2 * BLOCK] = { 0 };
    const uint8_t *p = data;
    size_t rest = len % BLOCK;
    size_t tail_len = rest < BLOCK - 8 ? BLOCK : 2 * BLOCK;
    uint64_t bits = (uint64_t)len * 8;

    for (size_t i = 0; i < len / BLOCK; i++)
        add_block(h, p + i * BLOCK);
    if (rest)
        memcpy(tail, p + (len - rest), rest);
    tail[rest] = 0x80;
    for (unsigned i = 0; i < 8; i++)
        tail[tail_len - 1 - i] = (uint8_t)(bits >> 8 * i);
    for (size_t i = 0; i < tail_len; i += BLOCK)
        add_block(h, tail + i);
    for (unsigned i = 0; i < DIGEST_LEN; i++)
        ret_digest[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
}

void digest_hex(const uint8_t digest[DIGEST_LEN], char ret_hex[2 * DIGEST_LEN + 1])
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < DIGEST_LEN; i++) {
        ret_hex[2 * i] = digits[digest[i] >> 4];
        ret_hex[2 * i + 1] = digits[digest[i] & 15];
    }
    ret_hex[2 * DIGEST_LEN] = '\0';
}

bool digest_equal(const uint8_t a[DIGEST_LEN], const uint8_t b[DIGEST_LEN])
{
    /* volatile: the compiler must not turn the loop into one that leaves early. */
    volatile uint8_t differ = 0;

    for (int i = 0; i < DIGEST_LEN; i++)
        differ = (uint8_t)(differ | (a[i] ^ b[i]));
    return differ == 0;
}
