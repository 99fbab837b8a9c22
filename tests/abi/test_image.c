/* Tests of core/policy/image.c: hostile bytes get an answer. A right policy's bytes are changed in thousands
 * of ways, at random and where it hurts; each copy lies in a block of exactly its size, so that
 * AddressSanitizer sees any look beyond it. */
#include "abi/policy.h"
#include "policy/image.h"

#include <criterion/criterion.h>
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY "slot_policy_entry"

struct file {
    unsigned char *bytes;
    size_t len;
};

static struct file right(void)
{
    struct file f = { .bytes = malloc(1 << 20) };
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/abi/odd_right.so", getenv("BERTH_BUILD"));
    FILE *in = fopen(path, "re");
    cr_assert(f.bytes && in, "%s", path);
    f.len = fread(f.bytes, 1, 1 << 20, in);
    fclose(in);
    return f;
}

/* Looks at a copy; true when it was accepted. A refusal has a reason. */
static bool look(const unsigned char *bytes, size_t len)
{
    struct policy_image_symbol symbol = { 0 };
    char err[256] = "";
    unsigned char *exact = malloc(len ? len : 1);
    cr_assert_not_null(exact);
    memcpy(exact, bytes, len);
    int r = policy_image_find(exact, len, ENTRY, &symbol, err, sizeof err);
    if (r == 0)
        cr_assert(symbol.offset <= len && symbol.size <= len - symbol.offset);
    else
        cr_assert(r < 0 && *err, "refused without a reason");
    free(exact);
    return r == 0;
}

static uint64_t next(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* The file's last segment that is loaded: where it ends, and at which address. */
struct end {
    size_t len;
    uint64_t address;
};

static struct end last_segment(const struct file *f)
{
    struct end end = { 0 };
    Elf64_Ehdr h;
    Elf64_Phdr p;
    memcpy(&h, f->bytes, sizeof h);
    for (unsigned i = 0; i < h.e_phnum; i++) {
        memcpy(&p, f->bytes + h.e_phoff + i * sizeof p, sizeof p);
        if (p.p_type == PT_LOAD && p.p_offset + p.p_filesz > end.len)
            end = (struct end){ p.p_offset + p.p_filesz, p.p_vaddr + p.p_filesz };
    }
    return end;
}

/* Numbers that break sums and bounds. */
static uint64_t nasty(uint64_t *x, struct end end)
{
    switch (next(x) % 9) {
    case 0:
        return 0;
    case 1:
        return UINT64_MAX - next(x) % 64;
    case 2:
        return (uint64_t)INT64_MAX + next(x) % 3;
    case 3:
        return end.len - next(x) % 64;
    case 4:
        return end.len + next(x) % 64;
    case 5:
        return UINT32_MAX - next(x) % 64;
    case 6:
        return next(x) % end.len;
    case 7:
        return end.address - next(x) % 300;
    default:
        return next(x);
    }
}

Test(image, finds_the_entry)
{
    struct file f = right();
    struct policy_image_symbol symbol;
    char err[256];
    cr_assert_eq(policy_image_find(f.bytes, f.len, ENTRY, &symbol, err, sizeof err), 0, "%s", err);
    cr_expect_eq(symbol.size, sizeof(struct slot_policy));
    cr_expect_eq(memcmp(f.bytes + symbol.offset, "brthpoly", 8), 0);
    cr_expect_lt(policy_image_find(f.bytes, f.len, "slot_policy_entr", &symbol, err, sizeof err), 0);
    cr_expect_str_eq(err, "it exports no slot_policy_entr");
    free(f.bytes);
}

Test(image, every_length_gets_an_answer)
{
    struct file f = right();
    size_t accepted = 0;
    for (size_t len = 0; len < f.len; len++)
        accepted += look(f.bytes, len);
    /* Behind the last segment lie section headers and debugging data alone. */
    cr_expect_lt(accepted, f.len / 2 + f.len / 4);
    cr_expect(look(f.bytes, f.len));
    free(f.bytes);
}

Test(image, random_bytes_get_an_answer)
{
    struct file f = right();
    unsigned char *copy = malloc(f.len);
    uint64_t x = 88172645463325252u;
    size_t accepted = 0;
    for (int i = 0; i < 20000; i++) {
        memcpy(copy, f.bytes, f.len);
        for (uint64_t n = 1 + next(&x) % 8; n > 0; n--)
            copy[next(&x) % (i % 2 ? 0x400 : f.len)] = (unsigned char)next(&x);
        accepted += look(copy, f.len - (i % 4 ? 0 : next(&x) % f.len));
    }
    cr_expect(accepted > 100 && accepted < 19000, "%zu", accepted);
    free(copy);
    free(f.bytes);
}

/* The places a reader of ELF believes: headers, dynamic entries, the hash, symbols. */
static size_t pick_field(const struct file *f, uint64_t *x, size_t *ret_size)
{
    Elf64_Ehdr h;
    Elf64_Phdr p;
    memcpy(&h, f->bytes, sizeof h);
    *ret_size = next(x) % 2 ? 8 : 4;
    uint64_t i = next(x) % (uint64_t)(h.e_phnum + 3);
    if (i >= h.e_phnum)
        return (size_t)(next(x) % sizeof h) & ~(size_t)1;
    memcpy(&p, f->bytes + h.e_phoff + i * sizeof p, sizeof p);
    if (next(x) % 3 == 0)
        return h.e_phoff + (size_t)i * sizeof p + (next(x) % sizeof p & ~(size_t)3);
    if (p.p_type == PT_DYNAMIC)
        return p.p_offset + next(x) % 32 * sizeof(Elf64_Dyn) + (next(x) % 8 ? sizeof(Elf64_Xword) : 0);
    return next(x) % 2 ? (size_t)(0x200 + (next(x) % 0x600 & ~(uint64_t)3)) : (size_t)(next(x) % f->len);
}

Test(image, nasty_numbers_get_an_answer)
{
    struct file f = right();
    struct end end = last_segment(&f);
    unsigned char *copy = malloc(f.len);
    uint64_t x = 1234567;
    size_t accepted = 0;
    cr_assert_lt(end.len, f.len);
    f.len = end.len; /* nothing follows: whatever is read beyond is beyond the block */
    for (int i = 0; i < 40000; i++) {
        memcpy(copy, f.bytes, f.len);
        for (uint64_t n = 1 + next(&x) % 3; n > 0; n--) {
            size_t size, at = pick_field(&f, &x, &size);
            uint64_t value = nasty(&x, end);
            if (at + size <= f.len)
                memcpy(copy + at, &value, size);
        }
        accepted += look(copy, f.len);
    }
    cr_expect(accepted > 1000 && accepted < 39000, "%zu", accepted);
    free(copy);
    free(f.bytes);
}

/* Where the value of a dynamic entry lies in the file. */
static size_t dynamic_value(const struct file *f, Elf64_Sxword tag)
{
    Elf64_Ehdr h;
    Elf64_Phdr p;
    Elf64_Dyn d;
    memcpy(&h, f->bytes, sizeof h);
    for (unsigned i = 0; i < h.e_phnum; i++) {
        memcpy(&p, f->bytes + h.e_phoff + i * sizeof p, sizeof p);
        for (size_t at = 0; p.p_type == PT_DYNAMIC && at < p.p_filesz; at += sizeof d) {
            memcpy(&d, f->bytes + p.p_offset + at, sizeof d);
            if (d.d_tag == tag)
                return p.p_offset + at + offsetof(Elf64_Dyn, d_un);
        }
    }
    cr_assert_fail("no dynamic entry %lld", (long long)tag);
    return 0;
}

Test(image, tables_that_begin_near_the_end_get_an_answer)
{
    static const Elf64_Sxword tags[] = { DT_SYMTAB, DT_STRTAB, DT_GNU_HASH };
    struct file f = right();
    struct end end = last_segment(&f);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        size_t at = dynamic_value(&f, tags[i]);
        uint64_t was, address = end.address - 400;
        memcpy(&was, f.bytes + at, sizeof was);
        for (; address < end.address + 8; address++) {
            memcpy(f.bytes + at, &address, sizeof address);
            (void)look(f.bytes, end.len);
        }
        memcpy(f.bytes + at, &was, sizeof was);
    }
    cr_expect(look(f.bytes, end.len));
    free(f.bytes);
}

Test(image, a_segment_smaller_than_its_bytes_is_refused)
{
    struct file f = right();
    Elf64_Ehdr h;
    struct policy_image_symbol symbol;
    char err[256];
    memcpy(&h, f.bytes, sizeof h);
    memset(f.bytes + h.e_phoff + offsetof(Elf64_Phdr, p_memsz), 0, sizeof(Elf64_Xword));
    cr_expect_lt(policy_image_find(f.bytes, f.len, ENTRY, &symbol, err, sizeof err), 0);
    cr_expect_str_eq(err, "segment 0 has an impossible address, size or alignment");
    free(f.bytes);
}
