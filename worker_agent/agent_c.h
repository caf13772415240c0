/* The worker agent as a C ABI: librelibra_agent.so. What the calls mean is written in agent.h and
 * expert_store.h; this file says what is different in C.
 *
 *   relibra_agent_config config;
 *   relibra_agent_config_init(&config, sizeof(config));
 *   config.planner = "planner:7070"; config.job = "run7"; config.rank = 2; ...
 *   relibra_agent* agent = relibra_agent_new(&config);           // null: out of memory
 *   relibra_agent_register(agent, layer, slot, buffer, pointer);  // memory of the trainer's
 *   relibra_agent_join(agent, 60.0);
 *   relibra_step_start start;
 *   relibra_agent_begin_step(agent, 17, 0, "update", &start, sizeof(start));
 *   ...
 *   relibra_agent_free(agent);
 *
 * Every call returns RELIBRA_OK or the code of the error (those of gRPC and absl::Status), whose
 * text relibra_agent_last_error gives. No exception leaves the library. Strings are UTF-8 and end
 * with 0; the library copies what it keeps. Structures start with their size, so that later
 * versions can append fields: a caller that was compiled against an older header goes on working.
 * An agent is used by one thread at a time. */
#ifndef RELIBRA_WORKER_AGENT_AGENT_C_H_
#define RELIBRA_WORKER_AGENT_AGENT_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RELIBRA_AGENT_ABI_VERSION 1
#if defined(__GNUC__)
#define RELIBRA_API __attribute__((visibility("default")))
#else
#define RELIBRA_API
#endif

typedef struct relibra_agent relibra_agent;

enum {
  RELIBRA_OK = 0,
  RELIBRA_UNKNOWN = 2,
  RELIBRA_INVALID_ARGUMENT = 3,
  RELIBRA_DEADLINE_EXCEEDED = 4,
  RELIBRA_NOT_FOUND = 5,
  RELIBRA_RESOURCE_EXHAUSTED = 8,
  RELIBRA_FAILED_PRECONDITION = 9,
  RELIBRA_INTERNAL = 13,
  RELIBRA_UNAVAILABLE = 14,
  RELIBRA_DATA_LOSS = 15
};

enum { RELIBRA_FP32 = 0, RELIBRA_BF16 = 1, RELIBRA_FP16 = 2, RELIBRA_FP8_E4M3 = 3 };
enum { RELIBRA_WEIGHT = 0, RELIBRA_OPTIMIZER_STATE = 1, RELIBRA_GRADIENT = 2 };
enum {
  RELIBRA_U8 = 0,
  RELIBRA_I8 = 1,
  RELIBRA_U16 = 2,
  RELIBRA_I16 = 3,
  RELIBRA_I32 = 4,
  RELIBRA_I64 = 5
};

/* One buffer that every expert has. */
typedef struct {
  const char* name;
  int32_t type; /* RELIBRA_FP32 ... */
  int32_t role; /* RELIBRA_WEIGHT ... */
  uint64_t bytes;
  int32_t replica_type; /* of gradients: RELIBRA_FP32 or RELIBRA_BF16 */
  int32_t reserved;
} relibra_buffer_spec;

typedef struct {
  size_t size;         /* sizeof(relibra_agent_config), set by relibra_agent_config_init */
  const char* planner; /* HOST:PORT */
  const char* job;
  const char* ep_group; /* null: "ep0" */
  int32_t rank;
  int32_t nodes;
  int32_t gpus_per_node;
  int32_t replica_slots;
  int32_t experts;
  int32_t num_layers;
  const uint32_t* layer_ids; /* [num_layers] */
  int32_t num_buffers;
  int32_t peer_error_handling;        /* 0 or 1 */
  const relibra_buffer_spec* buffers; /* [num_buffers] */
  const char* transports;             /* as in UCX_TLS; null: UCX's own choice */
  const char* net_devices;            /* as in UCX_NET_DEVICES; null likewise */
  double plan_timeout;                /* seconds */
  double group_timeout;
  double move_timeout;
  double exchange_timeout;
  uint64_t max_spare_bytes;
  uint64_t chunk_bytes;
} relibra_agent_config;

typedef struct {
  int32_t applied; /* 1: the group follows the plan; 0: it keeps its placement */
  int32_t micro_batches;
  int32_t moves;
  int32_t moves_in;
  int32_t bridges;
  int32_t reserved;
  uint64_t brought_bytes;
} relibra_step_start;

/* The library's RELIBRA_AGENT_ABI_VERSION. */
RELIBRA_API int32_t relibra_agent_abi_version(void);

/* Fills in the defaults. size: sizeof(relibra_agent_config) of the caller. */
RELIBRA_API void relibra_agent_config_init(relibra_agent_config* config, size_t size);

/* Never fails but for memory: what is wrong with the config is told by the first call. */
RELIBRA_API relibra_agent* relibra_agent_new(const relibra_agent_config* config);
RELIBRA_API void relibra_agent_free(relibra_agent* agent);
/* The last call's error, "" after a success; valid until the next call. */
RELIBRA_API const char* relibra_agent_last_error(const relibra_agent* agent);

/* Before joining: memory of the trainer's for a buffer of a physical slot. What is not registered
 * is allocated by relibra_agent_join. */
RELIBRA_API int32_t relibra_agent_register(relibra_agent* agent, int32_t layer, int32_t slot,
                                           int32_t buffer, void* pointer);
/* The buffer's memory after joining; null where there is none. */
RELIBRA_API void* relibra_agent_buffer(relibra_agent* agent, int32_t layer, int32_t slot,
                                       int32_t buffer);
/* Finds the group through the planner, connects, and starts to watch plans from from_step on.
 * home_rank: [num_layers, experts], where experts are now, or null for experts in order. */
RELIBRA_API int32_t relibra_agent_join(relibra_agent* agent, const int32_t* home_rank,
                                       uint32_t from_step, double timeout);

/* reason: [reason_bytes], why the plan was not applied, cut to fit; may be null. */
RELIBRA_API int32_t relibra_agent_begin_step(relibra_agent* agent, uint32_t step,
                                             uint32_t policy_version, const char* pass,
                                             relibra_step_start* start, size_t start_size,
                                             char* reason, size_t reason_bytes);
RELIBRA_API int32_t relibra_agent_prefetch(relibra_agent* agent, int32_t layer,
                                           int32_t micro_batch);
RELIBRA_API int32_t relibra_agent_wait(relibra_agent* agent, int32_t layer, int32_t micro_batch);
RELIBRA_API int32_t relibra_agent_reduce_gradients(relibra_agent* agent, int32_t layer,
                                                   int32_t micro_batch);
RELIBRA_API int32_t relibra_agent_release(relibra_agent* agent, int32_t layer, int32_t micro_batch);
/* computed_tokens: [num_computed], micro-batch-major by (micro-batch, layer); may be null. */
RELIBRA_API int32_t relibra_agent_end_step(relibra_agent* agent, int32_t with_gradients,
                                           const uint32_t* computed_tokens, size_t num_computed);

/* The instances of a (layer, micro-batch) for the kernels, see InstanceTable in
 * kernels/instance_map.h. Pointers into the agent, valid until the next call of this function. */
RELIBRA_API int32_t relibra_agent_instances(relibra_agent* agent, int32_t layer,
                                            int32_t micro_batch, int32_t* num_instances,
                                            const int32_t** offsets, const int32_t** rank,
                                            const int32_t** slot, const uint32_t** quota);
/* Maps routed ids on the CPU. ids: [tokens, top_k] of id_type; rank, slot, row_of_choice:
 * [tokens, top_k], overwritten; counts: [ranks * physical slots], overwritten. */
RELIBRA_API int32_t relibra_agent_map(relibra_agent* agent, int32_t layer, int32_t micro_batch,
                                      const void* ids, int32_t id_type, int64_t tokens,
                                      int64_t top_k, int32_t* rank, int32_t* slot,
                                      int32_t* row_of_choice, int64_t* counts, uint64_t* unplanned);

/* Where experts are: home_rank and home_slot [num_layers, experts], overwritten. */
RELIBRA_API int32_t relibra_agent_placement(relibra_agent* agent, int32_t* home_rank,
                                            int32_t* home_slot);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* RELIBRA_WORKER_AGENT_AGENT_C_H_ */
