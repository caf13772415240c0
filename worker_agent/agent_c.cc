#include "worker_agent/agent_c.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker_agent/session.h"
#include "worker_agent/transport/ucx.h"

namespace agent = relibra::agent;

// Everything that the handle stands for. Used by one thread at a time.
struct relibra_agent {
  absl::Status config_error;
  agent::PlannerClientOptions group;
  agent::AgentOptions options;
  relibra::transport::UcxOptions ucx;
  std::unique_ptr<agent::ExpertStore> store;  // until joined
  std::unique_ptr<agent::Session> session;    // once joined
  agent::Instances instances;                 // of the last call
  std::string error;
};

namespace {

// Runs a call; nothing thrown leaves it.
template <typename Call>
int32_t Guarded(relibra_agent* handle, Call call) {
  if (handle == nullptr) return RELIBRA_INVALID_ARGUMENT;
  absl::Status status;
  try {
    status = handle->config_error.ok() ? call() : handle->config_error;
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& e) {
    status = absl::InternalError(e.what());
  } catch (...) {
    status = absl::InternalError("unknown exception");
  }
  try {
    handle->error = std::string(status.message());
  } catch (...) {
    handle->error.clear();
  }
  return static_cast<int32_t>(status.code());
}

// The same for calls that need a group, and one of its layers and micro-batches.
template <typename Call>
int32_t InGroup(relibra_agent* handle, Call call) {
  return Guarded(handle, [&]() -> absl::Status {
    if (handle->session == nullptr) {
      return absl::FailedPreconditionError("the agent has not joined its group");
    }
    return call(handle->session->agent());
  });
}

template <typename Call>
int32_t InLayer(relibra_agent* handle, int32_t layer, int32_t micro_batch, Call call) {
  return InGroup(handle, [&](agent::Agent& a) -> absl::Status {
    const int layers = a.store().shape().layers();
    if (layer < 0 || layer >= layers || micro_batch < 0) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ", micro-batch ", micro_batch,
                                                     ": expected a layer of 0 to ", layers - 1));
    }
    return call(a);
  });
}

std::string Text(const char* text, const char* otherwise) {
  return text == nullptr ? otherwise : text;
}

absl::Status ReadConfig(const relibra_agent_config& config, relibra_agent& handle) {
  if (config.planner == nullptr || config.job == nullptr) {
    return absl::InvalidArgumentError("config: planner and job must be given");
  }
  if (config.num_layers < 0 || config.num_buffers < 0 ||
      (config.num_layers > 0 && config.layer_ids == nullptr) ||
      (config.num_buffers > 0 && config.buffers == nullptr)) {
    return absl::InvalidArgumentError("config: layer_ids or buffers do not fit their counts");
  }
  agent::GroupShape shape{.nodes = config.nodes,
                          .gpus_per_node = config.gpus_per_node,
                          .replica_slots = config.replica_slots,
                          .experts = config.experts};
  shape.layer_ids.assign(config.layer_ids, config.layer_ids + config.num_layers);
  std::vector<agent::BufferSpec> specs;
  for (int32_t i = 0; i < config.num_buffers; ++i) {
    const relibra_buffer_spec& b = config.buffers[i];
    if (b.role < RELIBRA_WEIGHT || b.role > RELIBRA_GRADIENT) {
      return absl::InvalidArgumentError(absl::StrCat("config: buffers[", i, "].role is ", b.role));
    }
    const auto type = [](int32_t code) {
      switch (code) {
        case RELIBRA_FP32:
          return relibra::FloatType::kFp32;
        case RELIBRA_BF16:
          return relibra::FloatType::kBf16;
        case RELIBRA_FP16:
          return relibra::FloatType::kFp16;
        case RELIBRA_FP8_E4M3:
          return relibra::FloatType::kFp8E4m3;
        default:
          return static_cast<relibra::FloatType>(-1);
      }
    };
    specs.push_back({.name = Text(b.name, ""),
                     .type = type(b.type),
                     .bytes = b.bytes,
                     .role = static_cast<agent::BufferRole>(b.role),
                     .replica_type = type(b.replica_type)});
  }
  auto store = agent::ExpertStore::Create(shape, config.rank, std::move(specs));
  if (!store.ok()) return store.status();
  handle.store = *std::move(store);
  handle.group = {.planner = config.planner,
                  .job = config.job,
                  .ep_group = Text(config.ep_group, "ep0"),
                  .rank = config.rank,
                  .shape = shape};
  handle.ucx = {.rank = config.rank,
                .size = shape.ranks(),
                .transports = Text(config.transports, ""),
                .net_devices = Text(config.net_devices, ""),
                .peer_error_handling = config.peer_error_handling != 0};
  handle.options = {.plan_timeout = absl::Seconds(config.plan_timeout),
                    .group_timeout = absl::Seconds(config.group_timeout),
                    .move_timeout = absl::Seconds(config.move_timeout),
                    .exchange_timeout = absl::Seconds(config.exchange_timeout),
                    .max_spare_bytes = config.max_spare_bytes,
                    .chunk_bytes = config.chunk_bytes};
  return absl::OkStatus();
}

// A caller of an older or newer header gives or takes a shorter or longer structure.
template <typename T>
void CopyOut(const T& from, T* to, size_t size) {
  std::memcpy(to, &from, std::min(size, sizeof(T)));
}

absl::StatusOr<agent::Placement> ReadPlacement(const agent::GroupShape& shape,
                                               const int32_t* home_rank) {
  const agent::Placement linear = agent::Placement::Linear(shape);
  if (home_rank == nullptr) return linear;
  std::vector<std::vector<int32_t>> homes;
  for (int l = 0; l < shape.layers(); ++l) {
    const int32_t* row = home_rank + static_cast<ptrdiff_t>(l) * shape.experts;
    homes.emplace_back(row, row + shape.experts);
  }
  return linear.WithHomes(homes);
}

}  // namespace

int32_t relibra_agent_abi_version(void) { return RELIBRA_AGENT_ABI_VERSION; }

void relibra_agent_config_init(relibra_agent_config* config, size_t size) {
  if (config == nullptr) return;
  const agent::AgentOptions defaults;
  relibra_agent_config filled = {};
  filled.size = size;
  filled.nodes = 1;
  filled.gpus_per_node = 1;
  filled.replica_slots = 2;
  filled.peer_error_handling = 1;
  filled.plan_timeout = absl::ToDoubleSeconds(defaults.plan_timeout);
  filled.group_timeout = absl::ToDoubleSeconds(defaults.group_timeout);
  filled.move_timeout = absl::ToDoubleSeconds(defaults.move_timeout);
  filled.exchange_timeout = absl::ToDoubleSeconds(defaults.exchange_timeout);
  filled.max_spare_bytes = defaults.max_spare_bytes;
  filled.chunk_bytes = defaults.chunk_bytes;
  std::memset(config, 0, size);
  CopyOut(filled, config, size);
}

relibra_agent* relibra_agent_new(const relibra_agent_config* config) {
  try {
    auto handle = std::make_unique<relibra_agent>();
    if (config == nullptr) {
      handle->config_error = absl::InvalidArgumentError("config is null");
    } else {
      // Fields that the caller's header does not have keep their defaults.
      relibra_agent_config full;
      relibra_agent_config_init(&full, sizeof(full));
      std::memcpy(&full, config, std::min(config->size, sizeof(full)));
      handle->config_error = ReadConfig(full, *handle);
    }
    return handle.release();
  } catch (...) {
    return nullptr;
  }
}

void relibra_agent_free(relibra_agent* handle) { delete handle; }

const char* relibra_agent_last_error(const relibra_agent* handle) {
  return handle == nullptr ? "the agent is null" : handle->error.c_str();
}

int32_t relibra_agent_register(relibra_agent* handle, int32_t layer, int32_t slot, int32_t buffer,
                               void* pointer) {
  return Guarded(handle, [&]() -> absl::Status {
    if (handle->store == nullptr) {
      return absl::FailedPreconditionError("memory is registered before joining");
    }
    return handle->store->RegisterBuffer(layer, slot, buffer, pointer);
  });
}

void* relibra_agent_buffer(relibra_agent* handle, int32_t layer, int32_t slot, int32_t buffer) {
  if (handle == nullptr || handle->session == nullptr) return nullptr;
  const agent::ExpertStore& store = handle->session->agent().store();
  const bool in_range = layer >= 0 && layer < store.shape().layers() && slot >= 0 &&
                        slot < store.shape().physical_slots() && buffer >= 0 &&
                        buffer < static_cast<int32_t>(store.specs().size());
  return in_range ? store.Buffer(layer, slot, buffer) : nullptr;
}

int32_t relibra_agent_join(relibra_agent* handle, const int32_t* home_rank, uint32_t from_step,
                           double timeout) {
  return Guarded(handle, [&]() -> absl::Status {
    if (handle->store == nullptr) {
      return absl::FailedPreconditionError("the agent has joined, or failed to: make a new one");
    }
    const absl::Time deadline = absl::Now() + absl::Seconds(timeout);
    auto placement = ReadPlacement(handle->group.shape, home_rank);
    if (!placement.ok()) return placement.status();
    auto transport = relibra::transport::CreateUcxTransport(handle->ucx);
    if (!transport.ok()) return transport.status();
    handle->store->AllocateMissing();
    auto session = agent::Session::Join(
        handle->group, std::make_unique<agent::PlannerClient>(handle->group), *std::move(transport),
        std::move(handle->store), *placement, handle->options, from_step, deadline);
    if (!session.ok()) return session.status();
    handle->session = *std::move(session);
    return absl::OkStatus();
  });
}

int32_t relibra_agent_begin_step(relibra_agent* handle, uint32_t step, uint32_t policy_version,
                                 const char* pass, relibra_step_start* start, size_t start_size,
                                 char* reason, size_t reason_bytes) {
  return InGroup(handle, [&](agent::Agent& a) -> absl::Status {
    if (start == nullptr) return absl::InvalidArgumentError("start is null");
    auto begun = a.BeginStep({step, policy_version, Text(pass, "update")});
    if (!begun.ok()) return begun.status();
    relibra_step_start out = {};
    out.applied = begun->applied ? 1 : 0;
    out.micro_batches = begun->micro_batches;
    out.moves = begun->moves;
    out.moves_in = begun->moves_in;
    out.bridges = begun->bridges;
    out.brought_bytes = begun->brought_bytes;
    CopyOut(out, start, start_size);
    if (reason != nullptr && reason_bytes > 0) {
      const size_t length = std::min(begun->reason.size(), reason_bytes - 1);
      std::memcpy(reason, begun->reason.data(), length);
      reason[length] = '\0';
    }
    return absl::OkStatus();
  });
}

int32_t relibra_agent_prefetch(relibra_agent* handle, int32_t layer, int32_t micro_batch) {
  return InLayer(handle, layer, micro_batch,
                 [&](agent::Agent& a) { return a.Prefetch(layer, micro_batch); });
}

int32_t relibra_agent_wait(relibra_agent* handle, int32_t layer, int32_t micro_batch) {
  return InLayer(handle, layer, micro_batch,
                 [&](agent::Agent& a) { return a.Wait(layer, micro_batch); });
}

int32_t relibra_agent_reduce_gradients(relibra_agent* handle, int32_t layer, int32_t micro_batch) {
  return InLayer(handle, layer, micro_batch,
                 [&](agent::Agent& a) { return a.ReduceGradients(layer, micro_batch); });
}

int32_t relibra_agent_release(relibra_agent* handle, int32_t layer, int32_t micro_batch) {
  return InLayer(handle, layer, micro_batch,
                 [&](agent::Agent& a) { return a.Release(layer, micro_batch); });
}

int32_t relibra_agent_end_step(relibra_agent* handle, int32_t with_gradients,
                               const uint32_t* computed_tokens, size_t num_computed) {
  return InGroup(handle, [&](agent::Agent& a) {
    agent::StepEnd end{.with_gradients = with_gradients != 0};
    if (computed_tokens != nullptr) {
      end.computed_tokens.assign(computed_tokens, computed_tokens + num_computed);
    }
    return a.EndStep(end);
  });
}

int32_t relibra_agent_instances(relibra_agent* handle, int32_t layer, int32_t micro_batch,
                                int32_t* num_instances, const int32_t** offsets,
                                const int32_t** rank, const int32_t** slot,
                                const uint32_t** quota) {
  return InLayer(handle, layer, micro_batch, [&](agent::Agent& a) -> absl::Status {
    if (num_instances == nullptr || offsets == nullptr || rank == nullptr || slot == nullptr ||
        quota == nullptr) {
      return absl::InvalidArgumentError("an output is null");
    }
    handle->instances = a.InstancesAt(layer, micro_batch);
    *num_instances = static_cast<int32_t>(handle->instances.rank.size());
    *offsets = handle->instances.offsets.data();
    *rank = handle->instances.rank.data();
    *slot = handle->instances.slot.data();
    *quota = handle->instances.quota.data();
    return absl::OkStatus();
  });
}

int32_t relibra_agent_map(relibra_agent* handle, int32_t layer, int32_t micro_batch,
                          const void* ids, int32_t id_type, int64_t tokens, int64_t top_k,
                          int32_t* rank, int32_t* slot, int32_t* row_of_choice, int64_t* counts,
                          uint64_t* unplanned) {
  return InLayer(handle, layer, micro_batch, [&](agent::Agent& a) -> absl::Status {
    if (rank == nullptr || slot == nullptr || row_of_choice == nullptr || counts == nullptr ||
        unplanned == nullptr || tokens < 0 || top_k < 1) {
      return absl::InvalidArgumentError("an output is null, or tokens or top_k is out of range");
    }
    static constexpr relibra::IdType kTypes[] = {relibra::IdType::kU8,  relibra::IdType::kI8,
                                                 relibra::IdType::kU16, relibra::IdType::kI16,
                                                 relibra::IdType::kI32, relibra::IdType::kI64};
    if (id_type < RELIBRA_U8 || id_type > RELIBRA_I64) {
      return absl::InvalidArgumentError(absl::StrCat("id_type is ", id_type));
    }
    auto map = a.Map(layer, micro_batch,
                     {.data = ids, .type = kTypes[id_type], .tokens = tokens, .top_k = top_k});
    if (!map.ok()) return map.status();
    std::copy(map->rank.begin(), map->rank.end(), rank);
    std::copy(map->slot.begin(), map->slot.end(), slot);
    std::copy(map->row_of_choice.begin(), map->row_of_choice.end(), row_of_choice);
    std::copy(map->counts.begin(), map->counts.end(), counts);
    *unplanned = map->unplanned;
    return absl::OkStatus();
  });
}

int32_t relibra_agent_placement(relibra_agent* handle, int32_t* home_rank, int32_t* home_slot) {
  return InGroup(handle, [&](agent::Agent& a) -> absl::Status {
    if (home_rank == nullptr || home_slot == nullptr) {
      return absl::InvalidArgumentError("an output is null");
    }
    const agent::GroupShape& shape = a.store().shape();
    for (int l = 0; l < shape.layers(); ++l) {
      for (int e = 0; e < shape.experts; ++e) {
        *home_rank++ = a.placement().RankOf(l, e);
        *home_slot++ = a.placement().SlotOf(l, e);
      }
    }
    return absl::OkStatus();
  });
}
