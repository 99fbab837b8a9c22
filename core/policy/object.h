/* Object: the bytes of a policy in a file that nobody can change, and that file opened as a shared object.
 *
 * dlopen knows objects by their name and returns an old one for a name it has seen, whatever the file holds
 * by now; a file that is overwritten or cut while it is mapped crashes the process. So the bytes are copied
 * into a memory file (sealed) or, where those may not be executed, into a private file without a name, and
 * opened as /proc/self/fd/N, where N stays taken as long as the object is open.
 *
 * Thread: one at a time (the loader's). Tests: tests/abi/test_load.c */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct policy_object;

struct policy_object_options {
    const char *private_dir; /* as in load.h */
    bool no_memfd;
};

/* Copies the bytes; nothing of them runs yet. -ENOMEM or what the system says, with err. */
int policy_object_new(const void *bytes, size_t len, const struct policy_object_options *o,
                      struct policy_object **ret_object, char *err, size_t errlen);
/* Closes what is open; NULL is fine. */
void policy_object_free(struct policy_object *o);
/* The file, to be read from its beginning; the object's own. */
int policy_object_fd(const struct policy_object *o);
/* Opens it: constructors run. -ENOEXEC with err. */
int policy_object_open(struct policy_object *o, char *err, size_t errlen);
/* NULL when there is no such symbol. It must be open. */
const void *policy_object_symbol(const struct policy_object *o, const char *name);
