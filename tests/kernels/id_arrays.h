// Random routed ids in any type.
#ifndef RELIBRA_TESTS_KERNELS_ID_ARRAYS_H_
#define RELIBRA_TESTS_KERNELS_ID_ARRAYS_H_

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace relibra::kernel_test {

inline constexpr IdType kAllIdTypes[] = {IdType::kU8,  IdType::kI8,  IdType::kU16,
                                         IdType::kI16, IdType::kI32, IdType::kI64};

inline std::string NameOf(IdType type) {
  static const char* const kNames[] = {"u8", "i8", "u16", "i16", "i32", "i64"};
  return kNames[static_cast<int>(type)];
}

inline int64_t MaxOf(IdType type) {
  static const int64_t kMax[] = {255,
                                 127,
                                 65535,
                                 32767,
                                 std::numeric_limits<int32_t>::max(),
                                 std::numeric_limits<int64_t>::max()};
  return kMax[static_cast<int>(type)];
}

inline bool IsSigned(IdType type) { return type != IdType::kU8 && type != IdType::kU16; }

// The low bytes of each id.
inline std::vector<uint8_t> Pack(const std::vector<int64_t>& ids, IdType type) {
  const size_t size = SizeOf(type);
  std::vector<uint8_t> bytes(ids.size() * size);
  for (size_t i = 0; i < ids.size(); ++i) memcpy(bytes.data() + i * size, &ids[i], size);
  return bytes;
}

struct IdMix {
  int64_t experts = 8;
  double not_routed = 0;  // share of ids below 0, for signed types
  double invalid = 0;     // share of ids >= experts, where the type has any
  bool one_expert = false;
};

inline std::vector<int64_t> RandomIds(size_t count, IdType type, const IdMix& mix,
                                      std::mt19937_64& random) {
  const int64_t top = std::min(mix.experts - 1, MaxOf(type));
  std::uniform_int_distribution<int64_t> expert(0, top);
  std::uniform_real_distribution<double> share(0, 1);
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) {
    id = mix.one_expert ? top : expert(random);
    const double draw = share(random);
    if (draw < mix.not_routed) {
      if (IsSigned(type)) id = draw < mix.not_routed / 2 ? -1 : -MaxOf(type) - 1;
    } else if (draw < mix.not_routed + mix.invalid && mix.experts <= MaxOf(type)) {
      id = draw < mix.not_routed + mix.invalid / 2 ? mix.experts : MaxOf(type);
    }
  }
  return ids;
}

}  // namespace relibra::kernel_test

#endif  // RELIBRA_TESTS_KERNELS_ID_ARRAYS_H_
