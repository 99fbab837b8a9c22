/* Settings: a policy's table of settings, and the values in effect: parsed once, here, for every policy.
 *
 * A value comes from what was given by name, else from the environment, else from the table's default. An
 * error names the setting, the text, what is allowed, and where the text was written.
 *
 * Pure; any thread. Must not know: where files and environments are. Tests: tests/unit/test_settings.c */
#pragma once
#include "abi/policy.h"
#include "policy/load.h"

#define POLICY_SETTINGS_MAX 64u

struct policy_settings;

/* Looks the entry's table over: names, kinds, bounds, choices, and defaults that parse. -EINVAL with err. */
int policy_settings_check_table(const struct slot_policy *entry, char *err, size_t errlen);
/* Finds and parses each value; the table must be right. The texts are copied, the names are the table's.
 * -EDOM with err for a value or a name; -ENOMEM. */
int policy_settings_new(const struct slot_policy *entry, const struct policy_load_options *o,
                        struct policy_settings **ret_settings, char *err, size_t errlen);
void policy_settings_free(struct policy_settings *s); /* NULL is fine */

/* Values in table order, `stride` bytes apart as the policy was built. */
const struct policy_value *policy_settings_values(const struct policy_settings *s, uint32_t *ret_stride);
struct policy_loaded_setting policy_settings_get(const struct policy_settings *s, uint32_t i);
