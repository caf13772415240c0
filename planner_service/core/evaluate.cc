#include "planner_service/core/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "planner_service/core/split.h"

namespace relibra {
namespace {

double Power(double base, int exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

// Rows that `pairs` of a source rank's `total` make at one place; see LayerWork.
double Rows(int64_t pairs, int64_t total, int top_k) {
  if (pairs == 0) return 0;
  const double share = static_cast<double>(pairs) / static_cast<double>(total);
  return static_cast<double>(total) / top_k * (1 - Power(1 - share, top_k));
}

// One task's memory, kept over its micro-batches.
class LayerEvaluator {
 public:
  LayerEvaluator(const Topology& topology, const EvaluateOptions& options)
      : topology_(topology),
        options_(options),
        flows_(size_t{1} * topology.num_ranks() * topology.num_ranks()) {}

  // `before`: the replicas of the micro-batch before, null for the first.
  LayerWork Work(absl::Span<const uint32_t> loads, const std::vector<int32_t>& homes,
                 const std::vector<Replica>& replicas, const std::vector<Replica>* before,
                 bool last) {
    LayerWork work;
    FillFlows(loads, homes, replicas);
    CountPairs(work);
    CountRows(work);
    CountCopies(homes, replicas, before, last, work);
    return work;
  }

 private:
  // flows_[s * P + g]: pairs of source rank s that rank g computes.
  void FillFlows(absl::Span<const uint32_t> loads, const std::vector<int32_t>& homes,
                 const std::vector<Replica>& replicas) {
    const size_t ranks = topology_.num_ranks();
    const size_t experts = homes.size();
    std::fill(flows_.begin(), flows_.end(), 0);
    replicated_.assign(experts, 0);
    for (const Replica& r : replicas) replicated_[r.expert] = 1;
    for (size_t s = 0; s < ranks; ++s) {
      for (size_t e = 0; e < experts; ++e) {
        if (!replicated_[e]) flows_[s * ranks + homes[e]] += loads[s * experts + e];
      }
    }
    SplitTokens(topology_, loads, homes, replicas, splits_);
    for (const Split& split : splits_) {
      flows_[split.source_rank * ranks + split.rank] += split.tokens;
    }
  }

  void CountPairs(LayerWork& work) {
    const int ranks = topology_.num_ranks();
    computed_.assign(ranks, 0);
    sent_.assign(ranks, 0);
    for (int s = 0; s < ranks; ++s) {
      for (int g = 0; g < ranks; ++g) {
        const int64_t pairs = flows_[size_t{1} * s * ranks + g];
        computed_[g] += pairs;
        sent_[s] += pairs;
        if (g != s) work.cross_rank_pairs += pairs;
        if (topology_.NodeOf(g) != topology_.NodeOf(s)) work.cross_node_pairs += pairs;
      }
    }
    for (int n = 0; n < topology_.nodes; ++n) {
      int64_t node = 0;
      for (int local = 0; local < topology_.gpus_per_node; ++local) {
        const int64_t rank_pairs = computed_[n * topology_.gpus_per_node + local];
        node += rank_pairs;
        work.most_rank_pairs = std::max(work.most_rank_pairs, static_cast<double>(rank_pairs));
      }
      work.pairs += node;
      work.most_node_pairs = std::max(work.most_node_pairs, static_cast<double>(node));
    }
  }

  void CountRows(LayerWork& work) {
    const int ranks = topology_.num_ranks();
    const int gpus = topology_.gpus_per_node;
    across_out_.assign(ranks, 0);
    across_in_.assign(ranks, 0);
    inside_out_.assign(ranks, 0);
    inside_in_.assign(ranks, 0);
    for (int s = 0; s < ranks; ++s) {
      for (int n = 0; n < topology_.nodes; ++n) {
        const int entry = n * gpus + s % gpus;  // the rank of node n that s's tokens arrive at
        int64_t node_pairs = 0;
        for (int g = n * gpus; g < (n + 1) * gpus; ++g) {
          const int64_t pairs = flows_[size_t{1} * s * ranks + g];
          node_pairs += pairs;
          if (g == entry) continue;
          const double rows = Rows(pairs, sent_[s], options_.top_k);
          inside_out_[entry] += rows;
          inside_in_[g] += rows;
        }
        if (entry == s) continue;
        const double rows = Rows(node_pairs, sent_[s], options_.top_k);
        across_out_[s] += rows;
        across_in_[entry] += rows;
      }
    }
    for (int r = 0; r < ranks; ++r) {
      work.most_cross_node_rows =
          std::max({work.most_cross_node_rows, across_out_[r], across_in_[r]});
      work.mean_cross_node_rows += across_out_[r] / ranks;
      work.most_in_node_rows = std::max({work.most_in_node_rows, inside_out_[r], inside_in_[r]});
      work.mean_in_node_rows += inside_out_[r] / ranks;
    }
  }

  void CountCopies(const std::vector<int32_t>& homes, const std::vector<Replica>& replicas,
                   const std::vector<Replica>* before, bool last, LayerWork& work) {
    const int ranks = topology_.num_ranks();
    fetches_in_.assign(ranks, 0);
    fetches_out_.assign(ranks, 0);
    returns_.assign(ranks, 0);
    in_use_.assign(ranks, 0);
    size_t b = 0;  // in *before, which is ascending like `replicas`
    for (const Replica& r : replicas) {
      if (r.cross_node) continue;
      ++work.replicas;
      ++in_use_[r.rank];
      ++returns_[homes[r.expert]];
      while (before != nullptr && b < before->size() &&
             ((*before)[b].expert < r.expert ||
              ((*before)[b].expert == r.expert && (*before)[b].rank < r.rank))) {
        ++b;
      }
      const bool kept = before != nullptr && b < before->size() &&
                        (*before)[b].expert == r.expert && (*before)[b].rank == r.rank;
      if (kept) continue;
      ++work.fetched;
      ++fetches_in_[r.rank];
      ++fetches_out_[homes[r.expert]];
    }
    for (int r = 0; r < ranks; ++r) {
      work.most_fetched = std::max({work.most_fetched, fetches_in_[r], fetches_out_[r]});
      if (options_.replicas_stay && !last) continue;
      work.most_returned = std::max({work.most_returned, in_use_[r], returns_[r]});
    }
  }

  const Topology topology_;
  const EvaluateOptions options_;
  std::vector<int64_t> flows_;
  std::vector<char> replicated_;
  std::vector<Split> splits_;
  std::vector<int64_t> computed_;
  std::vector<int64_t> sent_;
  std::vector<double> across_out_;
  std::vector<double> across_in_;
  std::vector<double> inside_out_;
  std::vector<double> inside_in_;
  std::vector<int32_t> fetches_in_;
  std::vector<int32_t> fetches_out_;
  std::vector<int32_t> returns_;
  std::vector<int32_t> in_use_;
};

// For each rank: what it sends and receives of one kind.
struct InOut {
  explicit InOut(int ranks) : in(ranks), out(ranks) {}

  int64_t Most() const {
    return std::max(*std::max_element(in.begin(), in.end()),
                    *std::max_element(out.begin(), out.end()));
  }

  std::vector<int64_t> in;
  std::vector<int64_t> out;
};

StepWork WorkOfStep(const Plan& plan) {
  const Topology& topology = plan.topology;
  InOut inside(topology.num_ranks());
  InOut across(topology.num_ranks());
  InOut bridges(topology.num_ranks());
  StepWork work;
  for (const LayerPlan& layer : plan.layers) {
    for (const Move& move : layer.moves) {
      const bool crosses = topology.NodeOf(move.from_rank) != topology.NodeOf(move.to_rank);
      InOut& moves = crosses ? across : inside;
      ++moves.out[move.from_rank];
      ++moves.in[move.to_rank];
      ++work.moves;
      if (crosses) ++work.cross_node_moves;
    }
    if (layer.replicas.empty()) continue;
    for (const Replica& r : layer.replicas[0]) {
      if (!r.cross_node) continue;
      ++bridges.out[layer.home_rank[r.expert]];
      ++bridges.in[r.rank];
      ++work.bridges;
    }
  }
  work.most_in_node_moves = inside.Most();
  work.most_cross_node_moves = across.Most();
  work.most_bridges = bridges.Most();
  return work;
}

double MaxOverMean(double most, int64_t sum, int parts) {
  if (sum == 0) return 1;
  return most * parts / static_cast<double>(sum);
}

}  // namespace

PolicyResult Evaluate(const std::string& policy, const Loads& loads, const Plan& plan,
                      const EvaluateOptions& options, ParallelFor parallel_for) {
  const int layers = loads.shape().layers;
  const int micro_batches = loads.shape().micro_batches;
  PolicyResult result;
  result.policy = policy;
  result.step = WorkOfStep(plan);
  result.work.resize(size_t{1} * layers * micro_batches);
  parallel_for(layers, [&](int l) {
    const LayerPlan& layer = plan.layers[l];
    LayerEvaluator evaluator(plan.topology, options);
    for (int m = 0; m < micro_batches; ++m) {
      result.work[size_t{1} * l * micro_batches + m] =
          evaluator.Work(loads.At(m, l), layer.home_rank, layer.replicas[m],
                         m > 0 ? &layer.replicas[m - 1] : nullptr, /*last=*/m + 1 == micro_batches);
    }
  });
  Summarise(plan.topology.nodes, plan.topology.num_ranks(), result);
  return result;
}

void Summarise(int nodes, int ranks, PolicyResult& result) {
  std::vector<double> imbalances;
  imbalances.reserve(result.work.size());
  double sum = 0;
  double node_sum = 0;
  result.pairs = result.copies = result.fetched = 0;
  result.cross_rank_pairs = result.cross_node_pairs = 0;
  for (const LayerWork& work : result.work) {
    imbalances.push_back(MaxOverMean(work.most_rank_pairs, work.pairs, ranks));
    sum += imbalances.back();
    node_sum += MaxOverMean(work.most_node_pairs, work.pairs, nodes);
    result.pairs += work.pairs;
    result.copies += work.replicas;
    result.fetched += work.fetched;
    result.cross_rank_pairs += work.cross_rank_pairs;
    result.cross_node_pairs += work.cross_node_pairs;
  }
  if (imbalances.empty()) return;
  const auto count = static_cast<double>(imbalances.size());
  result.imbalance_mean = sum / count;
  result.node_imbalance_mean = node_sum / count;
  result.copies_per_node = static_cast<double>(result.copies) / (count * nodes);
  std::sort(imbalances.begin(), imbalances.end());
  const auto rank_99 = static_cast<size_t>(std::ceil(0.99 * count));
  result.imbalance_p99 = imbalances[std::max<size_t>(rank_99, 1) - 1];
  result.imbalance_max = imbalances.back();
}

}  // namespace relibra
