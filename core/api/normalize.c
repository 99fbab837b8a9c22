/* Normalize: what clients are known to change from request to request without meaning anything by it. Each
 * normalizer has a name by which the configuration turns it on. Pure. Tests: tests/e2e/test_messages.py */
#include "api/private.h"
#include <string.h>

unsigned normalize_find(const char *name)
{
    return strcmp(name, "claude_billing") == 0 ? NORMALIZE_CLAUDE_BILLING : 0;
}

/* claude_billing: Claude Code's first block of the system prompt is a line for its maker's books, with a
 * number of its own in every conversation: left in place, no two conversations would share a token. */
bool normalize_drops(const struct api *a, const char *system_text)
{
    static const char billing[] = "x-anthropic-billing-header:";
    return (a->normalize & NORMALIZE_CLAUDE_BILLING) &&
           strncmp(system_text, billing, sizeof billing - 1) == 0;
}
