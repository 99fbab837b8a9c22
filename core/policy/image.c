/* Image: see image.h. Section headers are not looked at: they need not be there, and the dynamic linker does
 * not read them either. */
#include "policy/image.h"
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define SEGMENTS_MAX 128u
#define ADDRESS_MAX (UINT64_C(1) << 40) /* so that no sum of two of the numbers below wraps around */

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#elif defined(__riscv)
#define MACHINE EM_RISCV
#else
#error "core/policy/elf.c: which ELF machine is this?"
#endif

struct image {
    const unsigned char *bytes;
    size_t len;
    Elf64_Phdr segments[SEGMENTS_MAX]; /* copies: they need not be aligned in the bytes */
    unsigned n_segments;
    char *err;
    size_t errlen;
};

struct tables { /* offsets in the bytes */
    uint64_t symbols, strings, strings_len;
    uint64_t hash, gnu_hash; /* 0: absent */
};

__attribute__((format(printf, 2, 3))) static int bad(const struct image *m, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(m->err, m->errlen, format, args);
    va_end(args);
    return -ENOEXEC;
}

static bool is_inside(const struct image *m, uint64_t offset, uint64_t size)
{
    return offset <= m->len && size <= m->len - offset;
}

/* Copies `size` bytes; they lie anywhere, with any alignment. */
static bool copy(const struct image *m, uint64_t offset, void *to, size_t size)
{
    if (!is_inside(m, offset, size))
        return false;
    memcpy(to, m->bytes + offset, size);
    return true;
}

/* ---- the head and the segments ---- */

static int read_header(const struct image *m, Elf64_Ehdr *h)
{
    if (m->len < SELFMAG || memcmp(m->bytes, ELFMAG, SELFMAG) != 0)
        return bad(m, "not an ELF file");
    if (!copy(m, 0, h, sizeof *h))
        return bad(m, "truncated: %zu bytes, an ELF header has %zu", m->len, sizeof *h);
    if (h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_ident[EI_DATA] != ELFDATA2LSB ||
        h->e_ident[EI_VERSION] != EV_CURRENT)
        return bad(m, "not a 64-bit little-endian ELF file");
    if (h->e_machine != MACHINE)
        return bad(m, "built for another machine: ELF machine %u, this one is %u", h->e_machine, MACHINE);
    if (h->e_type != ET_DYN)
        return bad(m, "not a shared object: ELF type %u, a shared object is %u", h->e_type, ET_DYN);
    return 0;
}

static int check_load(const struct image *m, unsigned i, uint64_t *end)
{
    const Elf64_Phdr *p = &m->segments[i];
    if (!is_inside(m, p->p_offset, p->p_filesz))
        return bad(m, "truncated: segment %u lies at %llu + %llu, the file has %zu bytes", i,
                   (unsigned long long)p->p_offset, (unsigned long long)p->p_filesz, m->len);
    bool aligned = p->p_align <= 1 ||
                   (!(p->p_align & (p->p_align - 1)) && p->p_vaddr % p->p_align == p->p_offset % p->p_align);
    if (p->p_memsz < p->p_filesz || p->p_vaddr > ADDRESS_MAX || p->p_memsz > ADDRESS_MAX ||
        p->p_vaddr < *end || !aligned)
        return bad(m, "segment %u has an impossible address, size or alignment", i);
    *end = p->p_vaddr + p->p_memsz;
    return 0;
}

static int read_segments(struct image *m, const Elf64_Ehdr *h)
{
    uint64_t end = 0;
    unsigned loads = 0;
    if (h->e_phentsize != sizeof(Elf64_Phdr) || !h->e_phnum || h->e_phnum > SEGMENTS_MAX)
        return bad(m, "%u program headers of %u bytes, where 1..%u of %zu are allowed", h->e_phnum,
                   h->e_phentsize, SEGMENTS_MAX, sizeof(Elf64_Phdr));
    m->n_segments = h->e_phnum;
    if (!copy(m, h->e_phoff, m->segments, m->n_segments * sizeof(Elf64_Phdr)))
        return bad(m, "truncated: the program headers lie at %llu, the file has %zu bytes",
                   (unsigned long long)h->e_phoff, m->len);
    for (unsigned i = 0; i < m->n_segments; i++) {
        if (m->segments[i].p_type != PT_LOAD)
            continue;
        int r = check_load(m, i, &end);
        if (r < 0)
            return r;
        loads++;
    }
    return loads ? 0 : bad(m, "no segment is loaded");
}

/* Where an address lies in the bytes, and how many bytes of its segment follow there. */
static bool locate(const struct image *m, uint64_t address, uint64_t *ret_offset, uint64_t *ret_left)
{
    for (unsigned i = 0; i < m->n_segments; i++) {
        const Elf64_Phdr *p = &m->segments[i];
        if (p->p_type != PT_LOAD || address < p->p_vaddr || address - p->p_vaddr >= p->p_filesz)
            continue;
        *ret_offset = p->p_offset + (address - p->p_vaddr);
        *ret_left = p->p_filesz - (address - p->p_vaddr);
        return true;
    }
    return false;
}

/* ---- the dynamic section ---- */

static int read_dynamic(const struct image *m, uint64_t offset, uint64_t size, struct tables *t)
{
    uint64_t symbols = 0, strings = 0, strings_len = 0, entry = 0, hash = 0, gnu_hash = 0, left;
    for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= size; at += sizeof(Elf64_Dyn)) {
        Elf64_Dyn d;
        if (!copy(m, offset + at, &d, sizeof d))
            return bad(m, "truncated: the dynamic section lies at %llu + %llu, the file has %zu bytes",
                       (unsigned long long)offset, (unsigned long long)size, m->len);
        if (d.d_tag == DT_NULL)
            break;
        symbols = d.d_tag == DT_SYMTAB ? d.d_un.d_ptr : symbols;
        strings = d.d_tag == DT_STRTAB ? d.d_un.d_ptr : strings;
        strings_len = d.d_tag == DT_STRSZ ? d.d_un.d_val : strings_len;
        entry = d.d_tag == DT_SYMENT ? d.d_un.d_val : entry;
        hash = d.d_tag == DT_HASH ? d.d_un.d_ptr : hash;
        gnu_hash = d.d_tag == DT_GNU_HASH ? d.d_un.d_ptr : gnu_hash;
    }
    if (!symbols || !strings || entry != sizeof(Elf64_Sym) || !locate(m, symbols, &t->symbols, &left) ||
        !locate(m, strings, &t->strings, &left))
        return bad(m, "no table of dynamic symbols");
    t->strings_len = strings_len < left ? strings_len : left;
    if (hash && !locate(m, hash, &t->hash, &left))
        return bad(m, "the symbol hash lies outside the file");
    if (gnu_hash && !locate(m, gnu_hash, &t->gnu_hash, &left))
        return bad(m, "the symbol hash lies outside the file");
    return 0;
}

static int find_dynamic(const struct image *m, struct tables *t)
{
    for (unsigned i = 0; i < m->n_segments; i++)
        if (m->segments[i].p_type == PT_DYNAMIC)
            return read_dynamic(m, m->segments[i].p_offset, m->segments[i].p_filesz, t);
    return bad(m, "no dynamic section");
}

/* ---- how many symbols there are: only their hashes know ---- */

static int count_by_gnu_hash(const struct image *m, uint64_t at, uint64_t *ret_n)
{
    struct {
        uint32_t n_buckets, first, bloom_words, bloom_shift;
    } head;
    uint32_t last = 0, link;
    if (!copy(m, at, &head, sizeof head))
        return bad(m, "the symbol hash is truncated");
    uint64_t buckets = at + sizeof head + (uint64_t)head.bloom_words * 8;
    uint64_t chains = buckets + (uint64_t)head.n_buckets * 4;
    if (!is_inside(m, buckets, (uint64_t)head.n_buckets * 4))
        return bad(m, "the symbol hash is truncated");
    for (uint32_t i = 0; i < head.n_buckets; i++) {
        uint32_t first;
        memcpy(&first, m->bytes + buckets + (uint64_t)i * 4, sizeof first);
        last = first > last ? first : last;
    }
    *ret_n = head.first;
    if (last < head.first) /* every bucket is empty */
        return 0;
    /* The highest bucket's chain is the last one; its end has the lowest bit set. */
    do {
        if (!copy(m, chains + (uint64_t)(last - head.first) * 4, &link, sizeof link))
            return bad(m, "the symbol hash is truncated");
    } while (!(link & 1) && last++ < UINT32_MAX);
    *ret_n = (uint64_t)last + 1;
    return 0;
}

static int count_symbols(const struct image *m, const struct tables *t, uint64_t *ret_n)
{
    uint32_t words[2];
    if (t->gnu_hash)
        return count_by_gnu_hash(m, t->gnu_hash, ret_n);
    if (!t->hash)
        return bad(m, "no hash of dynamic symbols");
    if (!copy(m, t->hash, words, sizeof words))
        return bad(m, "the symbol hash is truncated");
    *ret_n = words[1];
    return 0;
}

/* ---- the symbol ---- */

static bool has_name(const struct image *m, const struct tables *t, uint32_t name_at, const char *name)
{
    size_t size = strlen(name) + 1;
    return name_at < t->strings_len && size <= t->strings_len - name_at &&
           memcmp(m->bytes + t->strings + name_at, name, size) == 0;
}

static int take_symbol(const struct image *m, const Elf64_Sym *s, const char *name,
                       struct policy_image_symbol *ret_symbol)
{
    uint64_t offset, left;
    if (ELF64_ST_TYPE(s->st_info) != STT_OBJECT)
        return bad(m, "%s is not data: ELF symbol type %u", name, ELF64_ST_TYPE(s->st_info));
    if (!locate(m, s->st_value, &offset, &left) || left < s->st_size)
        return bad(m, "%s does not lie in the file", name);
    *ret_symbol = (struct policy_image_symbol){ .offset = (size_t)offset, .size = s->st_size };
    return 0;
}

static int find_symbol(const struct image *m, const struct tables *t, const char *name,
                       struct policy_image_symbol *ret_symbol)
{
    uint64_t n = 0;
    int r = count_symbols(m, t, &n);
    if (r < 0)
        return r;
    if (n > m->len / sizeof(Elf64_Sym) || !is_inside(m, t->symbols, n * sizeof(Elf64_Sym)))
        return bad(m, "truncated: %llu dynamic symbols lie at %llu, the file has %zu bytes",
                   (unsigned long long)n, (unsigned long long)t->symbols, m->len);
    for (uint64_t i = 0; i < n; i++) {
        Elf64_Sym s;
        memcpy(&s, m->bytes + t->symbols + i * sizeof s, sizeof s);
        unsigned bind = ELF64_ST_BIND(s.st_info);
        if (s.st_shndx != SHN_UNDEF && (bind == STB_GLOBAL || bind == STB_WEAK) &&
            has_name(m, t, s.st_name, name))
            return take_symbol(m, &s, name, ret_symbol);
    }
    return bad(m, "it exports no %s", name);
}

int policy_image_find(const void *bytes, size_t len, const char *name, struct policy_image_symbol *ret_symbol,
                      char *err, size_t errlen)
{
    struct image m = { .bytes = bytes, .len = len, .err = err, .errlen = errlen };
    struct tables t = { 0 };
    Elf64_Ehdr header;
    int r = read_header(&m, &header);
    if (r == 0)
        r = read_segments(&m, &header);
    if (r == 0)
        r = find_dynamic(&m, &t);
    if (r == 0)
        r = find_symbol(&m, &t, name, ret_symbol);
    return r;
}
