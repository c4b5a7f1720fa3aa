/* What the runtime's C ABI promises, of a model with y = x * x + x, x being floats [?, 4]: runtime MODEL MISSING
   Ends with 0 where all holds; every handle is released, so that valgrind finds nothing. */

#include "stepalloc_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                            \
  do {                                                                         \
    if (!(what)) {                                                             \
      fprintf(stderr, "line %d: not so: %s\n", __LINE__, #what);               \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

/* Fails with the message unless all went well. */
#define OK(call)                                                               \
  do {                                                                         \
    StepallocStatus *status = (call);                                          \
    if (status != NULL) {                                                      \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call,                    \
              stepalloc_status_message(status));                               \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

/* Fails unless it is an error of this kind, whose message has this in it. */
#define FAILS(call, kind, part) fails((call), (kind), (part), __LINE__)

static void fails(StepallocStatus *status, StepallocCode code, const char *part, int line) {
  if (stepalloc_status_code(status) != code || strstr(stepalloc_status_message(status), part) == NULL) {
    fprintf(stderr, "line %d: %d (%d is wanted): %s (%s is wanted)\n", line, stepalloc_status_code(status), code,
            stepalloc_status_message(status), part);
    exit(1);
  }
  stepalloc_status_release(status);
}

static const StepallocCode ARGUMENT = STEPALLOC_CODE_ARGUMENT;

static const int64_t TWO_ROWS[2] = {2, 4}, THREE_ROWS[2] = {3, 4};
static const char *const X[1] = {"x"};

static StepallocTensor floats(const int64_t *dims, float *data) {
  size_t bytes = (size_t)(dims[0] * dims[1]) * sizeof(float);
  return (StepallocTensor){1, 2, dims, data, data == NULL ? 0 : bytes};
}

static float f(float x) { return x * x + x; }

static void null_is_an_error_and_never_more(void) {
  CHECK(stepalloc_status_code(NULL) == STEPALLOC_CODE_OK);
  CHECK(strcmp(stepalloc_status_message(NULL), "") == 0);
  FAILS(stepalloc_options_new(NULL), ARGUMENT, "options is null");
  FAILS(stepalloc_options_set(NULL, "max_mem", "1"), ARGUMENT, "options is null");
  FAILS(stepalloc_options_set_arenas(NULL, NULL), ARGUMENT, "options is null");
  FAILS(stepalloc_arenas_new(1, NULL), ARGUMENT, "arenas is null");
  FAILS(stepalloc_run_options_new(NULL), ARGUMENT, "options is null");
  FAILS(stepalloc_run_options_set_arena_shrinkage(NULL, true), ARGUMENT, "options is null");
  FAILS(stepalloc_run_options_terminate(NULL, true), ARGUMENT, "options is null");
  StepallocSession *session = NULL;
  FAILS(stepalloc_session_open(NULL, NULL, &session), ARGUMENT, "path is null");
  FAILS(stepalloc_session_open("", NULL, NULL), ARGUMENT, "session is null");
  FAILS(stepalloc_session_open_bytes(NULL, 7, NULL, &session), ARGUMENT, "model is null");
  CHECK(session == NULL);
  FAILS(stepalloc_session_run(NULL, NULL, NULL, NULL, 0, NULL, 0, NULL), ARGUMENT, "session is null");
  FAILS(stepalloc_session_release_memory(NULL), ARGUMENT, "session is null");
  size_t count = 7;
  CHECK(stepalloc_session_inputs(NULL, &count) == NULL && count == 0);
  CHECK(stepalloc_session_outputs(NULL, NULL) == NULL);
  char *text = NULL;
  FAILS(stepalloc_session_metadata(NULL, &text), ARGUMENT, "session is null");
  FAILS(stepalloc_session_statistics(NULL, &text), ARGUMENT, "session is null");
  FAILS(stepalloc_session_appended(NULL, &text), ARGUMENT, "session is null");
  FAILS(stepalloc_session_plan(NULL, NULL, NULL, 0, &text), ARGUMENT, "session is null");
  uint64_t bytes = 7;
  FAILS(stepalloc_session_predict(NULL, NULL, NULL, 0, &bytes), ARGUMENT, "session is null");
  FAILS(stepalloc_session_warm_up(NULL, NULL, NULL, 0), ARGUMENT, "session is null");
  FAILS(stepalloc_session_find_batch(NULL, NULL, NULL, 0, 0, &text), ARGUMENT, "session is null");
  FAILS(stepalloc_session_profile(NULL, NULL, NULL, 0, 1, &text), ARGUMENT, "session is null");
  StepallocBinding *binding = NULL;
  FAILS(stepalloc_binding_new(NULL, &binding), ARGUMENT, "session is null");
  FAILS(stepalloc_binding_bind_input(NULL, "x", NULL), ARGUMENT, "binding is null");
  FAILS(stepalloc_binding_bind_output(NULL, "y", NULL), ARGUMENT, "binding is null");
  FAILS(stepalloc_binding_feed_back(NULL, "y", "x"), ARGUMENT, "binding is null");
  FAILS(stepalloc_binding_clear_inputs(NULL), ARGUMENT, "binding is null");
  FAILS(stepalloc_binding_clear_outputs(NULL), ARGUMENT, "binding is null");
  FAILS(stepalloc_binding_run(NULL, NULL), ARGUMENT, "binding is null");
  StepallocValue *value = NULL;
  FAILS(stepalloc_binding_output(NULL, "y", &value), ARGUMENT, "binding is null");
  FAILS(stepalloc_value_new(1, NULL, 2, &value), ARGUMENT, "dims is null");
  FAILS(stepalloc_value_borrow(NULL, &value), ARGUMENT, "tensor is null");
  CHECK(stepalloc_value_tensor(NULL) == NULL && value == NULL && text == NULL && bytes == 7);
  FAILS(stepalloc_quantize_dynamic(NULL, NULL, NULL, NULL), ARGUMENT, "model is null");
  stepalloc_status_release(NULL);
  stepalloc_text_release(NULL);
  stepalloc_options_release(NULL);
  stepalloc_run_options_release(NULL);
  stepalloc_arenas_release(NULL);
  stepalloc_session_release(NULL);
  stepalloc_binding_release(NULL);
  stepalloc_value_release(NULL);
  CHECK(strlen(stepalloc_runtime_version()) >= 5);
}

static void what_is_no_model_is_said(const char *missing) {
  StepallocSession *session = NULL;
  FAILS(stepalloc_session_open(missing, NULL, &session), STEPALLOC_CODE_FILE, missing);
  FAILS(stepalloc_session_open_bytes((const uint8_t *)"no model", 8, NULL, &session), STEPALLOC_CODE_MODEL, "");
  FAILS(stepalloc_session_open("\xff", NULL, &session), ARGUMENT, "path is no UTF-8");
  CHECK(session == NULL);
  FAILS(stepalloc_quantize_dynamic(missing, "nowhere", NULL, NULL), STEPALLOC_CODE_FILE, missing);
  const char *const ops[1] = {"Relu"};
  StepallocQuantize options = {0};
  options.weight_symmetric = 2;
  FAILS(stepalloc_quantize_dynamic(missing, "nowhere", &options, NULL), ARGUMENT, "weight_symmetric is 2");
  options = (StepallocQuantize){0};
  options.op_types = ops;
  options.op_type_count = 1;
  FAILS(stepalloc_quantize_dynamic(missing, "nowhere", &options, NULL), STEPALLOC_CODE_FILE, missing);
}

static void options_are_looked_at(void) {
  StepallocOptions *options = NULL;
  OK(stepalloc_options_new(&options));
  FAILS(stepalloc_options_set(options, "memory", "1"), ARGUMENT, "there is no option memory of sessions; there are enable_cpu_mem_arena");
  FAILS(stepalloc_options_set(options, "max_mem", "-1"), ARGUMENT, "max_mem is -1: give a decimal number");
  FAILS(stepalloc_options_set(options, "enable_mem_pattern", "yes"), ARGUMENT, "give 0 or 1");
  FAILS(stepalloc_options_set(options, "arena_extend_strategy", "2"), ARGUMENT, "kNextPowerOfTwo");
  FAILS(stepalloc_options_set(options, "graph_optimization_level", "9"), ARGUMENT, "disable, basic, extended or all");
  OK(stepalloc_options_set(options, "graph_optimization_level", "basic"));
  OK(stepalloc_options_set(options, "enable_mem_pattern", "0"));
  stepalloc_options_release(options);
}

static void values_are_looked_at(void) {
  StepallocValue *value = NULL;
  const int64_t negative[2] = {2, -4}, huge[3] = {INT64_MAX, INT64_MAX, 2};
  FAILS(stepalloc_value_new(8, TWO_ROWS, 2, &value), ARGUMENT, "strings are not known");
  FAILS(stepalloc_value_new(99, TWO_ROWS, 2, &value), ARGUMENT, "there is no element type 99");
  FAILS(stepalloc_value_new(1, negative, 2, &value), ARGUMENT, "[2, -4] is negative");
  FAILS(stepalloc_value_new(1, huge, 3, &value), ARGUMENT, "more bytes than there are addresses");
  FAILS(stepalloc_value_new(1, huge, SIZE_MAX, &value), ARGUMENT, "dims cannot be");
  float data[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  StepallocTensor tensor = floats(TWO_ROWS, data);
  tensor.bytes = 31;
  FAILS(stepalloc_value_borrow(&tensor, &value), ARGUMENT, "has 32 bytes, and 31 are given");
  tensor = floats(TWO_ROWS, (float *)((char *)data + 1));
  FAILS(stepalloc_value_borrow(&tensor, &value), ARGUMENT, "does not begin at a multiple of 4 bytes");
  CHECK(value == NULL);
  OK(stepalloc_value_new(7, NULL, 0, &value));
  const StepallocTensor *scalar = stepalloc_value_tensor(value);
  CHECK(scalar->rank == 0 && scalar->bytes == 8 && *(const int64_t *)scalar->data == 0);
  stepalloc_value_release(value);
  const int64_t none[2] = {0, 4};
  OK(stepalloc_value_new(1, none, 2, &value));
  CHECK(stepalloc_value_tensor(value)->bytes == 0);
  stepalloc_value_release(value);
}

static void runs_name_what_is_wrong(const StepallocSession *session) {
  float data[12];
  for (int at = 0; at < 12; at++) data[at] = (float)at;
  StepallocTensor x = floats(TWO_ROWS, data);
  StepallocValue *y = NULL;
  OK(stepalloc_session_run(session, NULL, X, &x, 1, NULL, 1, &y));
  for (int at = 0; at < 8; at++) CHECK(((const float *)stepalloc_value_tensor(y)->data)[at] == f((float)at));
  stepalloc_value_release(y);
  y = NULL;
  const char *const z[1] = {"z"};
  FAILS(stepalloc_session_run(session, NULL, z, &x, 1, NULL, 1, &y), ARGUMENT, "there is no input z; inputs are x");
  FAILS(stepalloc_session_run(session, NULL, X, &x, 1, z, 1, &y), ARGUMENT, "there is no output z; outputs are y");
  FAILS(stepalloc_session_run(session, NULL, NULL, NULL, 0, NULL, 1, &y), ARGUMENT, "input x is missing");
  FAILS(stepalloc_session_run(session, NULL, X, &x, 1, NULL, 2, &y), ARGUMENT, "there are 1 outputs, and room for 2");
  FAILS(stepalloc_session_run(session, NULL, X, NULL, 1, NULL, 1, &y), ARGUMENT, "inputs is null");
  const int64_t rank3[3] = {2, 2, 2};
  StepallocTensor wrong = {1, 3, rank3, data, 32};
  FAILS(stepalloc_session_run(session, NULL, X, &wrong, 1, NULL, 1, &y), ARGUMENT, "input x is float32[2, 2, 2]; the model takes float32[?, 4]");
  wrong = (StepallocTensor){6, 2, TWO_ROWS, data, 32};
  FAILS(stepalloc_session_run(session, NULL, X, &wrong, 1, NULL, 1, &y), ARGUMENT, "input x is int32[2, 4]");
  wrong = floats(TWO_ROWS, (float *)((char *)data + 2));
  FAILS(stepalloc_session_run(session, NULL, X, &wrong, 1, NULL, 1, &y), ARGUMENT, "input x: data of float32[2,4] does not begin");
  wrong = floats(TWO_ROWS, NULL);
  wrong.bytes = 32;
  FAILS(stepalloc_session_run(session, NULL, X, &wrong, 1, NULL, 1, &y), ARGUMENT, "input x: data of float32[2,4] is null");
  CHECK(y == NULL);
  StepallocRunOptions *options = NULL;
  OK(stepalloc_run_options_new(&options));
  OK(stepalloc_run_options_terminate(options, true));
  FAILS(stepalloc_session_run(session, options, X, &x, 1, NULL, 1, &y), STEPALLOC_CODE_CANCELLED, "cancelled");
  OK(stepalloc_run_options_terminate(options, false));
  OK(stepalloc_run_options_set_arena_shrinkage(options, true));
  const char *const twice[2] = {"y", "y"};
  StepallocValue *both[2] = {NULL, NULL};
  OK(stepalloc_session_run(session, options, X, &x, 1, twice, 2, both));
  stepalloc_value_release(both[0]);
  CHECK(((const float *)stepalloc_value_tensor(both[1])->data)[7] == 56);
  stepalloc_value_release(both[1]);
  stepalloc_run_options_release(options);
}

/* A number of a JSON object. */
static long long number(const char *json, const char *name) {
  const char *at = strstr(json, name);
  CHECK(at != NULL);
  return atoll(at + strlen(name) + 2);
}

static void bound_memory_is_used_where_it_is(const StepallocSession *session) {
  float *memory = aligned_alloc(64, 256);
  for (int at = 0; at < 64; at++) memory[at] = (float)at;
  float *in = memory, *out = memory + 32;
  StepallocTensor tensor = floats(TWO_ROWS, in);
  StepallocValue *x = NULL, *y = NULL, *over = NULL, *larger = NULL, *made = NULL;
  OK(stepalloc_value_borrow(&tensor, &x));
  tensor = floats(TWO_ROWS, out);
  OK(stepalloc_value_borrow(&tensor, &y));
  tensor = floats(TWO_ROWS, in + 4);
  OK(stepalloc_value_borrow(&tensor, &over));
  tensor = floats(THREE_ROWS, in + 8);
  OK(stepalloc_value_borrow(&tensor, &larger));
  StepallocBinding *binding = NULL;
  OK(stepalloc_binding_new(session, &binding));
  FAILS(stepalloc_binding_run(binding, NULL), ARGUMENT, "input x is missing");
  FAILS(stepalloc_binding_output(binding, "y", &made), ARGUMENT, "output y was not made yet");
  FAILS(stepalloc_binding_bind_input(binding, "z", x), ARGUMENT, "there is no input z");
  FAILS(stepalloc_binding_bind_output(binding, "z", NULL), ARGUMENT, "there is no output z");
  OK(stepalloc_binding_bind_input(binding, "x", x));
  FAILS(stepalloc_binding_bind_output(binding, "y", over), ARGUMENT, "output y lies in the memory that is bound to input x");
  OK(stepalloc_binding_bind_output(binding, "y", y));
  FAILS(stepalloc_binding_bind_input(binding, "x", y), ARGUMENT, "input x lies in the memory that is bound to output y");
  /* Handles are not needed any more: the memory is. */
  stepalloc_value_release(x);
  stepalloc_value_release(y);
  char *second = NULL, *third = NULL;
  for (int round = 0; round < 3; round++) {
    in[0] = (float)round;
    OK(stepalloc_binding_run(binding, NULL));
    CHECK(out[0] == f((float)round) && out[7] == 56);
    if (round == 1) OK(stepalloc_session_statistics(session, &second));
  }
  OK(stepalloc_session_statistics(session, &third));
  CHECK(number(second, "num_reserves") == number(third, "num_reserves"));
  CHECK(number(second, "total_allocated") == number(third, "total_allocated"));
  CHECK(number(second, "plans_made") == number(third, "plans_made"));
  stepalloc_text_release(second);
  stepalloc_text_release(third);
  /* Another shape: the memory that is bound does not suit it, and stays bound. */
  OK(stepalloc_binding_bind_input(binding, "x", larger));
  FAILS(stepalloc_binding_run(binding, NULL), ARGUMENT, "output y is float32[3, 4], and the memory that is bound to it float32[2,4]");
  OK(stepalloc_binding_output(binding, "y", &made));
  CHECK(stepalloc_value_tensor(made)->data == out);
  stepalloc_value_release(made);
  OK(stepalloc_binding_bind_output(binding, "y", NULL));
  OK(stepalloc_binding_run(binding, NULL));
  OK(stepalloc_binding_output(binding, "y", &made));
  CHECK(stepalloc_value_tensor(made)->dims[0] == 3 && ((const float *)stepalloc_value_tensor(made)->data)[0] == f(8));
  /* What the library has made goes in again: the next run makes another. */
  const float *before = stepalloc_value_tensor(made)->data;
  OK(stepalloc_binding_bind_input(binding, "x", made));
  OK(stepalloc_binding_run(binding, NULL));
  StepallocValue *next = NULL;
  OK(stepalloc_binding_output(binding, "y", &next));
  CHECK(stepalloc_value_tensor(next)->data != before && ((const float *)stepalloc_value_tensor(next)->data)[0] == f(f(8)));
  CHECK(before[0] == f(8));
  stepalloc_value_release(made);
  OK(stepalloc_binding_clear_inputs(binding));
  OK(stepalloc_binding_clear_outputs(binding));
  FAILS(stepalloc_binding_run(binding, NULL), ARGUMENT, "input x is missing");
  stepalloc_binding_release(binding);
  /* It outlives the binding. */
  CHECK(((const float *)stepalloc_value_tensor(next)->data)[0] == f(f(8)));
  stepalloc_value_release(next);
  stepalloc_value_release(over);
  stepalloc_value_release(larger);
  free(memory);
}

static void outputs_are_fed_back(const StepallocSession *session) {
  float data[8] = {1, 1, 1, 1, 1, 1, 1, 1}, other[8];
  StepallocTensor tensor = floats(TWO_ROWS, data), place = floats(TWO_ROWS, other);
  StepallocValue *x = NULL, *y = NULL, *made = NULL;
  StepallocBinding *binding = NULL;
  OK(stepalloc_value_borrow(&tensor, &x));
  OK(stepalloc_value_borrow(&place, &y));
  OK(stepalloc_binding_new(session, &binding));
  OK(stepalloc_binding_bind_input(binding, "x", x));
  OK(stepalloc_binding_feed_back(binding, "y", "x"));
  FAILS(stepalloc_binding_bind_output(binding, "y", y), ARGUMENT, "output y is fed back");
  for (int round = 0; round < 3; round++) OK(stepalloc_binding_run(binding, NULL));
  OK(stepalloc_binding_output(binding, "y", &made));
  stepalloc_binding_release(binding);
  CHECK(((const float *)stepalloc_value_tensor(made)->data)[5] == f(f(f(1))) && data[5] == 1);
  stepalloc_value_release(made);
  stepalloc_value_release(x);
  stepalloc_value_release(y);
}

static void reports_are_told(const StepallocSession *session) {
  char *text = NULL;
  uint64_t two = 0, four = 0;
  float data[8] = {0};
  StepallocTensor x = floats(TWO_ROWS, NULL), there = floats(TWO_ROWS, data);
  const int64_t rows[2] = {4, 4};
  OK(stepalloc_session_predict(session, X, &x, 1, &two));
  x.dims = rows;
  OK(stepalloc_session_predict(session, X, &x, 1, &four));
  CHECK(two >= 32 && four == 2 * two);
  OK(stepalloc_session_plan(session, X, &x, 1, &text));
  CHECK(number(text, "wanted_bytes") == (long long)four && strstr(text, "\"steps\":[{") != NULL);
  stepalloc_text_release(text);
  OK(stepalloc_session_find_batch(session, NULL, NULL, 0, 1 << 20, &text));
  CHECK(number(text, "batch") == (1 << 20) / (long long)(two / 2));
  stepalloc_text_release(text);
  FAILS(stepalloc_session_find_batch(session, X, &there, 1, 1 << 20, &text), ARGUMENT, "no input has an open first dimension");
  FAILS(stepalloc_session_find_batch(session, NULL, NULL, 0, 1, &text), STEPALLOC_CODE_MEMORY, "a batch of 1 takes more");
  const char *const z[1] = {"z"};
  FAILS(stepalloc_session_plan(session, z, &x, 1, &text), ARGUMENT, "there is no input z; inputs are x");
  // A run of what is expected finds its plan and its arena.
  OK(stepalloc_session_warm_up(session, X, &x, 1));
  OK(stepalloc_session_warm_up(session, X, &there, 1));
  FAILS(stepalloc_session_warm_up(session, z, &x, 1), ARGUMENT, "there is no input z; inputs are x");
  OK(stepalloc_session_statistics(session, &text));
  const long long plans = number(text, "plans_made"), extensions = number(text, "num_arena_extensions");
  stepalloc_text_release(text);
  OK(stepalloc_session_profile(session, X, &there, 1, 2, &text));
  CHECK(strstr(text, "\"ms\":") != NULL);
  stepalloc_text_release(text);
  OK(stepalloc_session_statistics(session, &text));
  CHECK(number(text, "plans_made") == plans && number(text, "num_arena_extensions") == extensions);
  stepalloc_text_release(text);
  OK(stepalloc_session_metadata(session, &text));
  CHECK(number(text, "nodes") == 2);
  stepalloc_text_release(text);
  OK(stepalloc_session_appended(session, &text));
  CHECK(strcmp(text, "[]") == 0);
  stepalloc_text_release(text);
  OK(stepalloc_session_release_memory(session));
}

static void limits_hold_and_arenas_are_shared(const char *model) {
  StepallocOptions *options = NULL;
  StepallocArenas *arenas = NULL;
  StepallocSession *small = NULL, *other = NULL;
  OK(stepalloc_options_new(&options));
  OK(stepalloc_arenas_new(64, &arenas));
  OK(stepalloc_options_set_arenas(options, arenas));
  OK(stepalloc_session_open(model, options, &small));
  OK(stepalloc_session_open(model, options, &other));
  stepalloc_options_release(options);
  stepalloc_arenas_release(arenas);
  float data[80] = {0};
  const int64_t rows[2] = {20, 4};
  StepallocTensor large = floats(rows, data), x = floats(TWO_ROWS, data);
  StepallocValue *y = NULL;
  FAILS(stepalloc_session_run(small, NULL, X, &large, 1, NULL, 1, &y), STEPALLOC_CODE_MEMORY, "max_mem allows 64 bytes");
  OK(stepalloc_session_run(small, NULL, X, &x, 1, NULL, 1, &y));
  stepalloc_session_release(small);
  stepalloc_value_release(y);
  char *text = NULL;
  OK(stepalloc_session_statistics(other, &text));
  CHECK(number(text, "num_reserves") >= 1 && number(text, "limit") == 64);
  stepalloc_text_release(text);
  stepalloc_session_release(other);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  null_is_an_error_and_never_more();
  what_is_no_model_is_said(argv[2]);
  options_are_looked_at();
  values_are_looked_at();
  StepallocSession *session = NULL;
  StepallocOptions *options = NULL;
  OK(stepalloc_options_new(&options));
  OK(stepalloc_options_set(options, "intra_op_num_threads", "2"));
  OK(stepalloc_session_open(argv[1], options, &session));
  stepalloc_options_release(options);
  size_t count = 0;
  const StepallocPort *x = stepalloc_session_inputs(session, &count);
  CHECK(count == 1 && strcmp(x->name, "x") == 0 && x->element_type == 1 && x->rank == 2 && !x->has_default);
  CHECK(x->dims[0] == -1 && x->dims[1] == 4 && x->dim_names[1] == NULL);
  const StepallocPort *y = stepalloc_session_outputs(session, &count);
  CHECK(count == 1 && strcmp(y->name, "y") == 0);
  runs_name_what_is_wrong(session);
  bound_memory_is_used_where_it_is(session);
  outputs_are_fed_back(session);
  reports_are_told(session);
  limits_hold_and_arenas_are_shared(argv[1]);
  stepalloc_session_release(session);
  printf("all holds\n");
  return 0;
}
