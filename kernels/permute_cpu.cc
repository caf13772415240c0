#include "kernels/permute_cpu.h"

#include <array>

#include "kernels/float_type_switch.h"

namespace relibra {
namespace {

template <typename Word>
void PermuteWords(const PermuteArgs& args) {
  for (int64_t t = 0; t < args.tokens; ++t) {
    for (int32_t w = 0; w < args.words; ++w) PermuteWord<Word>(args, t, w);
  }
}

// element(choice, group, dot): one of the two group functions of permute_element.h.
template <typename GroupFunction>
void BackwardChoices(const CombineBackwardArgs& args, const GroupFunction& group_function) {
  const int32_t groups = (args.hidden + kGroup - 1) / kGroup;
  for (int64_t c = 0; c < args.tokens * args.top_k; ++c) {
    std::array<float, kDotLanes> partial = {};
    const int32_t row = args.row_of_choice[c];
    if (row >= 0) {
      const ChoiceRow choice = {.token = c / args.top_k,
                                .row = row,
                                .weight = args.weights == nullptr ? 1.0f : args.weights[c]};
      for (int32_t g = 0; g < groups; ++g) {
        float& dot = partial[g % kDotLanes];
        dot = group_function(choice, g, dot);
      }
    }
    for (int step = kDotLanes / 2; step > 0; step /= 2) {
      for (int i = 0; i < step; ++i) partial[i] += partial[i + step];
    }
    if (args.grad_weights != nullptr) args.grad_weights[c] = partial[0];
  }
}

}  // namespace

void PermuteOnCpu(const PermuteArgs& args, int word_bytes) {
  switch (word_bytes) {
    case 16:
      return PermuteWords<Word16>(args);
    case 4:
      return PermuteWords<uint32_t>(args);
    case 2:
      return PermuteWords<uint16_t>(args);
    default:
      return PermuteWords<uint8_t>(args);
  }
}

void CombineOnCpu(const CombineArgs& args, bool aligned) {
  if (!aligned) {
    for (int64_t t = 0; t < args.tokens; ++t) {
      for (int32_t c = 0; c < args.hidden; ++c) CombineElement(args, t, c);
    }
    return;
  }
  WithFloatType(args.rows.type, [&](auto in) {
    WithComputedFloatType(args.out_type, [&](auto out) {
      for (int64_t t = 0; t < args.tokens; ++t) {
        for (int32_t g = 0; g < args.hidden / kGroup; ++g) {
          CombineGroup<in(), out()>(args, t, g);
        }
      }
    });
  });
}

void CombineBackwardOnCpu(const CombineBackwardArgs& args, bool aligned) {
  if (!aligned) {
    BackwardChoices(args, [&](const ChoiceRow& choice, int32_t group, float dot) {
      return CombineBackwardElements(args, choice, group, dot);
    });
    return;
  }
  WithComputedFloatType(args.grad_type, [&](auto grad) {
    WithFloatType(args.rows.type, [&](auto in) {
      BackwardChoices(args, [&](const ChoiceRow& choice, int32_t group, float dot) {
        return CombineBackwardGroup<grad(), in()>(args, choice, group, dot);
      });
    });
  });
}

}  // namespace relibra
