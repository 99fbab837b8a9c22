/* Jinja text: values as text, text in code points, formats. Private to core/model/jinja_*.c and chat.c. */
#pragma once
#include "model/jinja_value.h"

/* jinja_text.c: values as text */
int jstr_of(struct jrt *rt, const struct jval *v, struct jval *ret); /* Python's str() */
int jwrite_str(struct jrt *rt, const struct jval *v);                /* the same, appended to rt->out */
int jwrite_repr(struct jrt *rt, const struct jval *v);
int jstr_concat(struct jrt *rt, const struct jval *parts, size_t n, struct jval *ret);
int jwrite_escaped(struct jrt *rt, const struct jval *v); /* & < > " ' as HTML */
size_t jfloat_repr(double f, char dst[40]);

/* jinja_json.c */
struct jjson {
    bool ascii, sort;
    const char *indent; /* NULL: one line */
    size_t indent_len;
    const char *item_sep, *key_sep;
    size_t item_len, key_len;
};
int jwrite_json(struct jrt *rt, const struct jval *v, const struct jjson *how, unsigned level);

/* jinja_string.c: text in code points */
enum { JS_LEFT = 1, JS_RIGHT = 2 };
enum jcase { JCASE_UPPER, JCASE_LOWER, JCASE_CAPITALIZE, JCASE_TITLE, JCASE_SWAP, JCASE_PYTITLE, JCASE_NONE };
size_t jstr_count(const char *s, size_t len);             /* code points */
size_t jstr_offset(const char *s, size_t len, size_t cp); /* byte where code point cp starts, or len */
bool jis_space(uint32_t cp);
struct jval jsub(const struct jval *s, size_t from, size_t to); /* bytes */
struct jval jstr_strip(const struct jval *s, const struct jval *chars, unsigned sides);
int jstr_strip_charged(struct jrt *rt, const struct jval *s, const struct jval *chars, unsigned sides,
                       struct jval *ret);
int jstr_case(struct jrt *rt, const struct jval *s, enum jcase how, struct jval *ret);
int jstr_replace(struct jrt *rt, const struct jval *s, const struct jval *from, const struct jval *to,
                 int64_t max, struct jval *ret);
int jstr_split(struct jrt *rt, const struct jval *s, const struct jval *sep, int64_t max, bool right,
               struct jval *ret);
int jstr_lines(struct jrt *rt, const struct jval *s, bool keep, struct jval *ret);
const char *jstr_find(const char *s, size_t len, const char *what, size_t wlen);
/* What looking once through len bytes costs. */
int jcharge_find(struct jrt *rt, size_t len, size_t wlen);
/* The last one, or NULL; charges as it goes. */
int jstr_rfind(struct jrt *rt, const char *s, size_t len, const char *what, size_t wlen, const char **ret);
int jstr_join(struct jrt *rt, const struct jval *sep, const struct jval *items, bool strict,
              struct jval *ret);
int jstr_repeat(struct jrt *rt, const struct jval *s, int64_t times, struct jval *ret);

/* jinja_case.c: Unicode tables. Full mappings: one code point may become up to three. */
bool jcase_cased(uint32_t cp);
unsigned jcase_upper(uint32_t cp, uint32_t dst[3]);
unsigned jcase_lower(uint32_t cp, uint32_t dst[3]);
unsigned jcase_title(uint32_t cp, uint32_t dst[3]);

/* jinja_format.c */
int jformat_percent(struct jrt *rt, const struct jval *fmt, const struct jval *args, struct jval *ret);
int jformat_braces(struct jrt *rt, const struct jval *fmt, const struct jcall *args, struct jval *ret);
