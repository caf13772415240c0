#include "planner_service/trace/plan_file.h"

#include <google/protobuf/util/json_util.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "planner_service/trace/file_bytes.h"

namespace relibra {
namespace {

// protobuf's own printer is an order of magnitude too slow for millions of split rows, and prints
// every false "crossNode"; hence this one. Its output is read back with protobuf's parser in the
// tests.

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void AppendDouble(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "\"NaN\"";
  } else if (std::isinf(value)) {
    out += value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  } else {
    char buffer[32];  // the shortest text that reads back as the same double
    out.append(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
  }
}

template <typename Numbers>
void AppendNumbers(std::string& out, const Numbers& numbers) {
  out += '[';
  const char* separator = "";
  for (auto number : numbers) {
    absl::StrAppend(&out, separator, number);
    separator = ",";
  }
  out += ']';
}

// Appends one array of objects, each written by `append`.
template <typename Rows, typename Append>
void AppendRows(std::string& out, const Rows& rows, const char* separator, Append append) {
  out += '[';
  bool first = true;
  for (const auto& row : rows) {
    if (!first) out += ',';
    out += separator;
    first = false;
    append(row);
  }
  out += ']';
}

void AppendMicroBatch(std::string& out, const v1::MicroBatchPlan& micro_batch) {
  absl::StrAppend(&out, "{\"microBatch\": ", micro_batch.micro_batch(), ", \"replicas\": ");
  AppendRows(out, micro_batch.replicas(), " ", [&](const v1::Replica& row) {
    absl::StrAppend(&out, "{\"expert\": ", row.expert(), ", \"rank\": ", row.rank(),
                    ", \"slot\": ", row.slot());
    absl::StrAppend(&out, ", \"tokens\": ", row.tokens(),
                    row.cross_node() ? ", \"crossNode\": true}" : "}");
  });
  out += ", \"splits\": ";
  AppendRows(out, micro_batch.splits(), " ", [&](const v1::Split& row) {
    absl::StrAppend(&out, "{\"expert\": ", row.expert(), ", \"sourceRank\": ", row.source_rank());
    absl::StrAppend(&out, ", \"rank\": ", row.rank(), ", \"tokens\": ", row.tokens(), "}");
  });
  if (micro_batch.split_columns_size() > 0) {
    out += ", \"splitColumns\": ";
    AppendRows(out, micro_batch.split_columns(), " ", [&](const v1::SplitColumns& columns) {
      absl::StrAppend(&out, "{\"sourceRank\": ", columns.source_rank(), ", \"experts\": ");
      AppendNumbers(out, columns.experts());
      out += ", \"ranks\": ";
      AppendNumbers(out, columns.ranks());
      out += ", \"tokens\": ";
      AppendNumbers(out, columns.tokens());
      out += '}';
    });
  }
  out += '}';
}

void AppendLayer(std::string& out, const v1::LayerPlan& layer) {
  absl::StrAppend(&out, "{\"layer\": ", layer.layer(), ",\n   \"homeRank\": ");
  AppendNumbers(out, layer.home_rank());
  out += ",\n   \"moves\": ";
  AppendRows(out, layer.moves(), " ", [&](const v1::Move& row) {
    absl::StrAppend(&out, "{\"expert\": ", row.expert(), ", \"fromRank\": ", row.from_rank(),
                    ", \"toRank\": ", row.to_rank(), "}");
  });
  out += ",\n   \"microBatches\": ";
  AppendRows(out, layer.micro_batches(), "\n    ",
             [&](const v1::MicroBatchPlan& row) { AppendMicroBatch(out, row); });
  out += '}';
}

void AppendSummary(std::string& out, const v1::PlanSummary& summary) {
  out += "{";
  const char* separator = "";
  auto number = [&](const char* field, double value) {
    absl::StrAppend(&out, separator, "\"", field, "\": ");
    AppendDouble(out, value);
    separator = ", ";
  };
  auto count = [&](const char* field, uint64_t value) {
    absl::StrAppend(&out, separator, "\"", field, "\": \"", value, "\"");
  };
  number("imbalanceBefore", summary.imbalance_before());
  number("imbalanceAfter", summary.imbalance_after());
  number("lowerBound", summary.lower_bound());
  number("planSeconds", summary.plan_seconds());
  number("nodeImbalanceAfter", summary.node_imbalance_after());
  count("moves", summary.moves());
  count("crossNodeMoves", summary.cross_node_moves());
  count("replicas", summary.replicas());
  count("bridges", summary.bridges());
  count("replicasKept", summary.replicas_kept());
  count("tokens", summary.tokens());
  number("missingShare", summary.missing_share());
  out += "}";
}

absl::StatusOr<v1::Plan> ParseJsonPlan(absl::string_view text, absl::string_view name) {
  v1::Plan plan;
  const google::protobuf::util::Status status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(text.data(), text.size()), &plan);
  if (!status.ok()) {
    // One line: protobuf shows the place in lines of its own.
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": not a plan: ", absl::StrReplaceAll(status.message().ToString(), {{"\n", " "}})));
  }
  return plan;
}

}  // namespace

std::string PlanToJson(const v1::Plan& plan) {
  std::string out;
  absl::StrAppend(&out, "{\"job\": ", Quoted(plan.job()), ", \"step\": ", plan.step(),
                  ", \"digest\": ", Quoted(plan.digest()));
  absl::StrAppend(&out, ", \"policyVersion\": ", plan.policy_version(),
                  ", \"pass\": ", Quoted(plan.pass()), ", \"epGroup\": ", Quoted(plan.ep_group()));
  if (plan.has_topology()) {
    const v1::PlanTopology& topology = plan.topology();
    absl::StrAppend(&out, ",\n \"topology\": {\"nodes\": ", topology.nodes(),
                    ", \"gpusPerNode\": ", topology.gpus_per_node(),
                    ", \"replicaSlots\": ", topology.replica_slots(), "}");
  }
  out += ",\n \"layers\": ";
  AppendRows(out, plan.layers(), "\n  ", [&](const v1::LayerPlan& row) { AppendLayer(out, row); });
  if (plan.has_summary()) {
    out += ",\n \"summary\": ";
    AppendSummary(out, plan.summary());
  }
  out += "}\n";
  return out;
}

absl::StatusOr<v1::Plan> ParsePlan(absl::string_view bytes, absl::string_view name) {
  // A message never starts with '{': it would be a group, which proto3 does not have.
  const size_t start = bytes.find_first_not_of(" \t\r\n");
  if (start != absl::string_view::npos && bytes[start] == '{') {
    return ParseJsonPlan(bytes.substr(start), name);
  }
  v1::Plan plan;
  if (bytes.empty() || bytes.size() > std::numeric_limits<int>::max() ||
      !plan.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": not a plan: expected JSON or the bytes of a relibra.v1.Plan message, got ",
        bytes.size(), " other bytes"));
  }
  return plan;
}

absl::Status WritePlanFile(const v1::Plan& plan, PlanFormat format, const std::string& path) {
  if (format == PlanFormat::kJson) return WriteFileBytes(path, PlanToJson(plan));
  std::string bytes;
  if (plan.ByteSizeLong() > std::numeric_limits<int>::max() || !plan.SerializeToString(&bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path,
                     ": the plan is above protobuf's limit of 2 GiB; write JSON or leave its "
                     "splits out"));
  }
  return WriteFileBytes(path, bytes);
}

absl::StatusOr<v1::Plan> ReadPlanFile(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFileBytes(path);
  if (!bytes.ok()) return bytes.status();
  return ParsePlan(*bytes, path);
}

}  // namespace relibra
