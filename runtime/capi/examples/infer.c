/* Runs a model three times on memory of its own: infer MODEL

   cc infer.c -I include -L target/release -lstepalloc_runtime -o infer */

#include "stepalloc_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Dimensions that the model leaves open. */
#define OPEN 2
/* Elements that are printed of an output. */
#define SHOWN 8

/* Prints what is wrong, if anything is, and releases the status. */
static int failed(StepallocStatus *status) {
  if (status == NULL) return 0;
  fprintf(stderr, "infer: %s\n", stepalloc_status_message(status));
  stepalloc_status_release(status);
  return 1;
}

/* Memory for an input, filled with 0, 0.25, 0.5, ...; NULL if it is not of floats. */
static float *fill(const StepallocPort *port, StepallocTensor *tensor, int64_t *dims, size_t most) {
  if (port->element_type != 1 || port->rank < 0 || (size_t)port->rank > most) {
    fprintf(stderr, "infer: input %s is no tensor of floats of known rank\n", port->name);
    return NULL;
  }
  size_t count = 1;
  for (ptrdiff_t at = 0; at < port->rank; at++) {
    dims[at] = port->dims[at] < 0 ? OPEN : port->dims[at];
    count *= (size_t)dims[at];
  }
  size_t bytes = count * sizeof(float);
  float *data = aligned_alloc(64, (bytes + 63) / 64 * 64);
  for (size_t at = 0; data != NULL && at < count; at++) data[at] = (float)at / 4;
  *tensor = (StepallocTensor){1, (size_t)port->rank, dims, data, bytes};
  return data;
}

static void print(const char *name, const StepallocTensor *tensor) {
  printf("%s [", name);
  size_t count = 1;
  for (size_t at = 0; at < tensor->rank; at++) {
    printf("%s%lld", at > 0 ? ", " : "", (long long)tensor->dims[at]);
    count *= (size_t)tensor->dims[at];
  }
  printf("]:");
  for (size_t at = 0; tensor->element_type == 1 && at < count && at < SHOWN; at++)
    printf(" %g", ((const float *)tensor->data)[at]);
  printf("\n");
}

/* Binds memory to all inputs, and has outputs made by the library; runs thrice, and prints the outputs. */
static int run(const StepallocSession *session, StepallocBinding *binding, float **memory) {
  size_t inputs, outputs;
  const StepallocPort *input = stepalloc_session_inputs(session, &inputs);
  const StepallocPort *output = stepalloc_session_outputs(session, &outputs);
  for (size_t at = 0; at < inputs; at++) {
    int64_t dims[8];
    StepallocTensor tensor;
    StepallocValue *value = NULL;
    memory[at] = fill(&input[at], &tensor, dims, 8);
    if (memory[at] == NULL || failed(stepalloc_value_borrow(&tensor, &value))) return 1;
    /* The binding keeps what it needs of the value; the memory stays ours. */
    int wrong = failed(stepalloc_binding_bind_input(binding, input[at].name, value));
    stepalloc_value_release(value);
    if (wrong) return 1;
  }
  for (int round = 0; round < 3; round++) {
    /* Bound memory may be written between runs. */
    if (inputs > 0) memory[0][0] = (float)round;
    if (failed(stepalloc_binding_run(binding, NULL))) return 1;
    for (size_t at = 0; at < outputs; at++) {
      StepallocValue *value = NULL;
      if (failed(stepalloc_binding_output(binding, output[at].name, &value))) return 1;
      print(output[at].name, stepalloc_value_tensor(value));
      stepalloc_value_release(value);
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: infer MODEL\n");
    return 2;
  }
  StepallocOptions *options = NULL;
  StepallocSession *session = NULL;
  StepallocBinding *binding = NULL;
  char *statistics = NULL;
  float **memory = NULL;
  size_t inputs = 0;
  int status = failed(stepalloc_options_new(&options)) ||
               failed(stepalloc_options_set(options, "max_mem", "268435456")) ||
               /* Threads of its own, which end with the session. */
               failed(stepalloc_options_set(options, "intra_op_num_threads", "2")) ||
               failed(stepalloc_session_open(argv[1], options, &session)) ||
               failed(stepalloc_binding_new(session, &binding));
  if (!status) {
    stepalloc_session_inputs(session, &inputs);
    memory = calloc(inputs + 1, sizeof *memory);
    status = memory == NULL || run(session, binding, memory) ||
             failed(stepalloc_session_statistics(session, &statistics));
  }
  if (!status) printf("%s\n", statistics);
  stepalloc_text_release(statistics);
  stepalloc_binding_release(binding);
  stepalloc_session_release(session);
  stepalloc_options_release(options);
  for (size_t at = 0; at < inputs; at++) free(memory[at]);
  free(memory);
  return status;
}
