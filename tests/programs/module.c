/* A library with a thread-local. */
static __thread char block[64];

char *module_block(void) { return block; }
