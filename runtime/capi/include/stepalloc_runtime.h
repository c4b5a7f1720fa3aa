/* libstepalloc_runtime.so: models of ONNX and OpenVINO in planned memory.

   Errors: a function that may fail returns a status: NULL where all went well, else a code and a message, to be released by
   stepalloc_status_release. What a function was to give is only written where all went well. NULL is an error wherever the text of a
   function does not allow it.

   Handles: what ..._new or ..._open gives is released once, by the function of that name; NULL is none. Sessions, bindings and values
   may be released in any order: each keeps what it needs. All may be used by several threads at once, but for being released, and
   options, which are set by one.

   Text is UTF-8 with a nul byte at its end. What is given as char ** is released by stepalloc_text_release.

   Tensors lie row by row, from a multiple of an element's bytes on (64 is best). Elements of less than a byte take a byte each. Element
   types have ONNX's numbers (TensorProto.DataType); strings and complex numbers are refused. */


#pragma once

/* Made by cbindgen of runtime/capi: do not edit it. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What kind of error it is.
typedef enum {
  // None.
  STEPALLOC_CODE_OK = 0,
  // An argument is wrong: a name, a shape, an element type, an option, or elements that are out of range for a node.
  STEPALLOC_CODE_ARGUMENT = 1,
  // A file cannot be read or written.
  STEPALLOC_CODE_FILE = 2,
  // What was read is no model, or a damaged one.
  STEPALLOC_CODE_MODEL = 3,
  // The model asks for what there is not here: an operator, or one of its attributes' values or element types.
  STEPALLOC_CODE_UNSUPPORTED = 4,
  // A node cannot be run on its inputs: their shapes do not fit.
  STEPALLOC_CODE_NODE = 5,
  // Memory is not to be had, or more than the options allow.
  STEPALLOC_CODE_MEMORY = 6,
  // The run was ended by its options.
  STEPALLOC_CODE_CANCELLED = 7,
  // A node is wrong whatever its inputs are: an attribute, or the number of its inputs or outputs.
  STEPALLOC_CODE_GRAPH = 8,
} StepallocCode;

// Arenas that several sessions share: those that do not run at the same time use the same one.
typedef struct StepallocArenas StepallocArenas;

// Values that are bound to a session's inputs and outputs.
typedef struct StepallocBinding StepallocBinding;

// Options of a session.
typedef struct StepallocOptions StepallocOptions;

// Options of a run.
typedef struct StepallocRunOptions StepallocRunOptions;

// A model that is ready to run, and the memory of its runs.
typedef struct StepallocSession StepallocSession;

// An error; null where there is none.
typedef struct StepallocStatus StepallocStatus;

// A tensor that stays: in memory of its own, or in the caller's.
typedef struct StepallocValue StepallocValue;

// Options of dynamic quantization. All zero they are ONNX Runtime's defaults.
typedef struct {
  // Weights are unsigned (QUInt8), not signed (QInt8).
  bool unsigned_weights;
  // A scale for each column of a product's weights.
  bool per_channel;
  // Weights of 7 bits, for processors without VNNI.
  bool reduce_range;
  // Nodes in the graphs of If, Loop and Scan, too.
  bool subgraphs;
  // Whether 0 is in the middle of the range of weights: 1 yes, -1 no, 0 as the type has it (yes where they are signed).
  int32_t weight_symmetric;
  // Only these operators, as MatMul; all that can be where there are none.
  const char *const *op_types;
  // How many.
  size_t op_type_count;
  // Only these nodes, by name; all where there are none.
  const char *const *nodes;
  // How many.
  size_t node_count;
  // Not these nodes.
  const char *const *exclude;
  // How many.
  size_t exclude_count;
} StepallocQuantize;

// A tensor as C sees it: its type, and where its elements are.
typedef struct {
  // ONNX's number of the element type: 1 float, 2 uint8, 3 int8, 6 int32, 7 int64, 9 bool, 10 float16, 11 double, 16 bfloat16...
  int32_t element_type;
  // The number of dimensions; 0 for a scalar.
  size_t rank;
  // Elements along each dimension; may be null for a scalar.
  const int64_t *dims;
  // The first element.
  void *data;
  // Bytes of all elements.
  size_t bytes;
} StepallocTensor;

// An input or output as the model declares it.
typedef struct {
  // Its name.
  const char *name;
  // ONNX's number of the element type; 0 where the model does not say it.
  int32_t element_type;
  // The number of dimensions; -1 where the model does not say it.
  ptrdiff_t rank;
  // Elements along each dimension; -1 where the model leaves it open.
  const int64_t *dims;
  // The names of dimensions that are left open; null for those that have none.
  const char *const *dim_names;
  // An input that has a value, and may be left out.
  bool has_default;
} StepallocPort;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// A binding of a session with nothing bound. It keeps the session.
//
// # Safety
// `session` is null or a handle, `binding` is null or writable.
StepallocStatus *stepalloc_binding_new(const StepallocSession *session, StepallocBinding **binding);

// Binds a value to an input, in place of what was bound to it. The binding keeps the value's memory; elements may be changed between
// runs. An error where the model declares another type, or a bound output lies in that memory.
//
// # Safety
// `binding` and `value` are null or handles, `name` is null or ends with a nul byte.
StepallocStatus *stepalloc_binding_bind_input(const StepallocBinding *binding,
                                              const char *name,
                                              const StepallocValue *value);

// Binds a value to an output: runs write there, and a run whose output is of another type is an error. Null: the library makes memory for
// it in the next run, and uses it again as long as the type is the same.
//
// # Safety
// `binding` and `value` are null or handles, `name` is null or ends with a nul byte.
StepallocStatus *stepalloc_binding_bind_output(const StepallocBinding *binding,
                                               const char *name,
                                               const StepallocValue *value);

// What comes out of `output` is what `input` is in the next run; where it is that input with rows appended (a decoder's cache), they
// are appended where it lies.
//
// # Safety
// `binding` is null or a handle, names are null or end with a nul byte.
StepallocStatus *stepalloc_binding_feed_back(const StepallocBinding *binding,
                                             const char *output,
                                             const char *input);

// Forgets all inputs.
//
// # Safety
// `binding` is null or a handle.
StepallocStatus *stepalloc_binding_clear_inputs(const StepallocBinding *binding);

// Forgets all outputs.
//
// # Safety
// `binding` is null or a handle.
StepallocStatus *stepalloc_binding_clear_outputs(const StepallocBinding *binding);

// Runs the session on what is bound. `options` may be null. Runs of one binding wait for one another.
//
// # Safety
// `binding` and `options` are null or handles; the memory of bound values is as `stepalloc_value_borrow` says.
StepallocStatus *stepalloc_binding_run(const StepallocBinding *binding, const StepallocRunOptions *options);

// An output of the newest run, as a value of the same memory: the next run writes there again, unless its type is another then, it is
// bound to an input, or `stepalloc_binding_bind_output` was called for it. It is released by the caller, and outlives the binding.
//
// # Safety
// `binding` is null or a handle, `name` is null or ends with a nul byte, `value` is null or writable.
StepallocStatus *stepalloc_binding_output(const StepallocBinding *binding,
                                          const char *name,
                                          StepallocValue **value);

// Releases a binding; null is none.
//
// # Safety
// `binding` is null or a handle that was not released, and that no run has.
void stepalloc_binding_release(StepallocBinding *binding);

// Options with their defaults.
//
// # Safety
// `options` is null, or writable.
StepallocStatus *stepalloc_options_new(StepallocOptions **options);

// Sets an option by its name; numbers in decimals, truth values as 0 or 1.
//
// | name | default | meaning |
// |---|---|---|
// | enable_cpu_mem_arena | 1 | the arena is kept for the next run |
// | enable_mem_pattern | 1 | values that are not alive at the same time share memory |
// | graph_optimization_level | all | disable, basic, extended or all |
// | disabled_optimizers | none | passes to leave out, with commas between them |
// | optimized_model_filepath | none | where the optimized model is written when the session is made |
// | intra_op_num_threads | 0 | threads of the session's own that a run uses; 0: those that all sessions share |
// | compilation_num_threads | 0 | threads for what is done before the first run; 0: those of runs |
// | arena_extend_strategy | kSameAsRequested | or kNextPowerOfTwo |
// | max_mem | no limit | bytes for arenas, outputs and copied weights; a run that needs more is an error |
// | prepacking | 1 | constant weights are packed once |
// | huge_pages | 0 | the system is asked for huge pages behind large arenas |
// | plans | 16 | plans that are kept for sets of input types |
//
// # Safety
// `options` is null or a handle that no other thread uses meanwhile; texts are null or end with a nul byte.
StepallocStatus *stepalloc_options_set(StepallocOptions *options, const char *name, const char *value);

// Sessions that are made by these options use these arenas, in turns with others that have them.
//
// # Safety
// Both are null or handles; no other thread uses `options` meanwhile.
StepallocStatus *stepalloc_options_set_arenas(StepallocOptions *options, const StepallocArenas *arenas);

// Releases options; null is none. Sessions keep what they need.
//
// # Safety
// `options` is null or a handle that was not released.
void stepalloc_options_release(StepallocOptions *options);

// Arenas for several sessions, which together may have `max_mem` bytes at one time; UINT64_MAX is no limit.
//
// # Safety
// `arenas` is null, or writable.
StepallocStatus *stepalloc_arenas_new(uint64_t max_mem, StepallocArenas **arenas);

// Releases arenas; null is none. Sessions that use them keep them.
//
// # Safety
// `arenas` is null or a handle that was not released.
void stepalloc_arenas_release(StepallocArenas *arenas);

// Options of runs with their defaults. They may be used for many runs.
//
// # Safety
// `options` is null, or writable.
StepallocStatus *stepalloc_run_options_new(StepallocRunOptions **options);

// When a run is done, arenas that no run has go back to the system (`memory.enable_memory_arena_shrinkage`); off by default.
//
// # Safety
// `options` is null or a handle that no other thread uses meanwhile.
StepallocStatus *stepalloc_run_options_set_arena_shrinkage(StepallocRunOptions *options,
                                                           bool on);

// Ends the runs that have these options, from any thread, before their next node; or lets runs go on again.
//
// # Safety
// `options` is null or a handle.
StepallocStatus *stepalloc_run_options_terminate(const StepallocRunOptions *options, bool on);

// Releases options of runs; null is none.
//
// # Safety
// `options` is null or a handle that was not released, and that no run has.
void stepalloc_run_options_release(StepallocRunOptions *options);

// Writes a model whose constant weights have 8 bits, as ONNX Runtime's `quantize_dynamic` does; a file that is there is replaced when all is
// written. `options` may be null. `json`, which may be null, gets what was done: quantized (of each node op and name), left (those that
// could not be: op, name, why), bytes_before, bytes_after.
//
// # Safety
// Paths are null or end with nul bytes; `options` is null, or its lists have as many texts as is said, which end with nul bytes;
// `json` is null or writable.
StepallocStatus *stepalloc_quantize_dynamic(const char *model,
                                            const char *output,
                                            const StepallocQuantize *options,
                                            char **json);

// What the model's file says of it: producer, producer_version, graph_name, domain, description, version, metadata (an object), opsets (an
// object), nodes, weights, weight_bytes; null where it says nothing.
//
// # Safety
// `session` is null or a handle, `json` is null or writable.
StepallocStatus *stepalloc_session_metadata(const StepallocSession *session,
                                            char **json);

// What the session's arenas have and had, in bytes and in the words of ONNX Runtime: limit (null: none), in_use, total_allocated,
// max_in_use, num_allocs, num_reserves, num_arena_extensions, num_arena_shrinkages, max_alloc_size; and plans_made.
//
// # Safety
// `session` is null or a handle, `json` is null or writable.
StepallocStatus *stepalloc_session_statistics(const StepallocSession *session,
                                              char **json);

// Pairs of an output and an input, where the output is the input with rows appended: what `stepalloc_binding_feed_back` is for. The
// graph is optimized for that, if it was not.
//
// # Safety
// `session` is null or a handle, `json` is null or writable.
StepallocStatus *stepalloc_session_appended(const StepallocSession *session,
                                            char **json);

// What the plan of a run on these inputs says, without a run; an input without `data` stands for its type, and one that is left out is as
// the model declares it, with 1 for open dimensions. Bytes: arena_bytes, lower_bound_bytes (no arena can do with less), wanted_bytes (what
// `max_mem` counts). Counts: planned_tensors, inplace_tensors, unplanned_nodes, folded_nodes. steps: of each node that runs, in order,
// name, op, is_view, is_unplanned. blocks: of each part of the arena offset, bytes, first and end (the steps in which its bytes are its
// own), and values, which lie there one after the other, with name, type, and step.
//
// # Safety
// `session` is null or a handle; names and inputs are null or `count`; names end with nul bytes; inputs describe memory that nobody
// writes during the call; `json` is null or writable.
StepallocStatus *stepalloc_session_plan(const StepallocSession *session,
                                        const char *const *input_names,
                                        const StepallocTensor *inputs,
                                        size_t count,
                                        char **json);

// Bytes that a run on these inputs counts towards `max_mem`, as its plan tells, without a run. Inputs as for `stepalloc_session_plan`.
//
// # Safety
// As for `stepalloc_session_plan`; `bytes` is null or writable.
StepallocStatus *stepalloc_session_predict(const StepallocSession *session,
                                           const char *const *input_names,
                                           const StepallocTensor *inputs,
                                           size_t count,
                                           uint64_t *bytes);

// Gets the session ready for inputs of these types, so that a first run on such neither plans nor takes an arena, nor faults pages of the
// arena in: the plan is made, constant inputs are packed, and the arena is taken and touched. Inputs as for `stepalloc_session_plan`; those of
// few integers that decide sizes (shapes, numbers of rounds) need their `data`. To be called for each set of types that is expected, the
// largest one first: so the arena is taken once. No more sets than plans are kept (the option `plans`).
//
// # Safety
// As for `stepalloc_session_plan`.
StepallocStatus *stepalloc_session_warm_up(const StepallocSession *session,
                                           const char *const *input_names,
                                           const StepallocTensor *inputs,
                                           size_t count);

// The largest batch whose run counts at most `max_mem` bytes, told by plans: batch, bytes, next_bytes (what one more would take; null
// where there is none: next_error says why), shapes (an object: those of the inputs). The batch is the first dimension of the first input
// that is open, and dimensions of that name; inputs with `data` stay as they are.
//
// # Safety
// As for `stepalloc_session_plan`.
StepallocStatus *stepalloc_session_find_batch(const StepallocSession *session,
                                              const char *const *input_names,
                                              const StepallocTensor *inputs,
                                              size_t count,
                                              uint64_t max_mem,
                                              char **json);

// Runs the model `runs` times on these inputs, and tells of each node that runs, in order: name, op, ms (of a run), output_bytes,
// scratch_bytes, in_place.
//
// # Safety
// As for `stepalloc_session_plan`; all inputs have `data`.
StepallocStatus *stepalloc_session_profile(const StepallocSession *session,
                                           const char *const *input_names,
                                           const StepallocTensor *inputs,
                                           size_t count,
                                           size_t runs,
                                           char **json);

// Reads a model from a file of ONNX, or of OpenVINO (.xml), and prepares it. `options` may be null.
//
// # Safety
// `path` is null or ends with a nul byte, `options` is null or a handle, `session` is null or writable.
StepallocStatus *stepalloc_session_open(const char *path, const StepallocOptions *options, StepallocSession **session);

// The same of an ONNX model in memory, which is copied. Its weights must be in it.
//
// # Safety
// `model` is null or has `bytes` bytes; the others as for `stepalloc_session_open`.
StepallocStatus *stepalloc_session_open_bytes(const uint8_t *model,
                                              size_t bytes,
                                              const StepallocOptions *options,
                                              StepallocSession **session);

// Releases a session; null is none. Its bindings stay as they are.
//
// # Safety
// `session` is null or a handle that was not released, and that no run has.
void stepalloc_session_release(StepallocSession *session);

// The model's inputs, in its order, those with a default among them; how many there are goes to `count`. They are there as long as the
// session. Null of null.
//
// # Safety
// `session` is null or a handle, `count` is null or writable.
const StepallocPort *stepalloc_session_inputs(const StepallocSession *session,
                                              size_t *count);

// The model's outputs, in its order; how many there are goes to `count`. They are there as long as the session. Null of null.
//
// # Safety
// `session` is null or a handle, `count` is null or writable.
const StepallocPort *stepalloc_session_outputs(const StepallocSession *session,
                                               size_t *count);

// Runs the model on `input_count` inputs by name, which are looked at during the call and not copied. Outputs are new values, released by
// the caller: those of `output_names`, in that order, or all in the model's order where it is null. `outputs` has room for
// `output_count`. `options` may be null.
//
// # Safety
// `session` and `options` are null or handles; names and inputs are null or as many as is said; names end with nul bytes; inputs describe
// memory that nobody writes during the call; `outputs` is null or writable for `output_count` handles.
StepallocStatus *stepalloc_session_run(const StepallocSession *session,
                                       const StepallocRunOptions *options,
                                       const char *const *input_names,
                                       const StepallocTensor *inputs,
                                       size_t input_count,
                                       const char *const *output_names,
                                       size_t output_count,
                                       StepallocValue **outputs);

// Gives arenas that no run has now back to the system. The next run takes one anew.
//
// # Safety
// `session` is null or a handle.
StepallocStatus *stepalloc_session_release_memory(const StepallocSession *session);

// The code of a status; `Ok` of null.
//
// # Safety
// The status is null, or was given by this library and not released.
StepallocCode stepalloc_status_code(const StepallocStatus *status);

// What is wrong, where, and what to do; an empty text of null. It is there as long as the status.
//
// # Safety
// The status is null, or was given by this library and not released.
const char *stepalloc_status_message(const StepallocStatus *status);

// Releases a status; null is none.
//
// # Safety
// The status is null, or was given by this library and not released.
void stepalloc_status_release(StepallocStatus *status);

// Releases text that was given as `char **`; null is none.
//
// # Safety
// The text is null, or was given by this library to be released, and was not.
void stepalloc_text_release(char *text);

// The version of this library, as 0.1.0. It is there for good.
const char *stepalloc_runtime_version(void);

// A tensor in new memory, which is zero: `dims` has `rank` sizes.
//
// # Safety
// `dims` is null or has `rank` sizes; `value` is null or writable.
StepallocStatus *stepalloc_value_new(int32_t element_type, const int64_t *dims, size_t rank, StepallocValue **value);

// A tensor in the caller's memory, which is used where it is. The memory must be there until the value is released, and bindings that
// it was bound to are released, or have something else in its place. It is read while a run has it as an input, and written while a run
// has it as an output: nobody writes it meanwhile, or, of outputs, looks at it. Memory of a value that is only an input may be read-only.
//
// # Safety
// `tensor` is null or describes memory as above; `value` is null or writable.
StepallocStatus *stepalloc_value_borrow(const StepallocTensor *tensor,
                                        StepallocValue **value);

// The type of a value, and where its elements are; null of null. It is there as long as the value; elements may be read, and written,
// while no run has them.
//
// # Safety
// `value` is null or a handle.
const StepallocTensor *stepalloc_value_tensor(const StepallocValue *value);

// Releases a value; null is none. Memory of its own goes when no other value or binding has it.
//
// # Safety
// `value` is null or a handle that was not released.
void stepalloc_value_release(StepallocValue *value);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
