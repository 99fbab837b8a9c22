/* Schema: what the JSON schema of a tool's arguments says of their types, as far as that decides how a value
 * is read. Followed are type, enum, const, anyOf, oneOf, allOf and $ref within the schema itself; what is not
 * known does not tell. Pure. Tests: tests/unit/test_answer.c */
#pragma once
#include <jansson.h>

/* {member: bits 1 << json_typeof(value) of the types it may have, or 0 where the schema does not tell}, a new
 * reference; a schema that is none tells of no member. NULL: out of memory. However a schema refers to
 * itself, the work is bounded. */
json_t *schema_members(const json_t *schema);
