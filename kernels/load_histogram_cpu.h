// The CPU side of LoadHistogram; arguments were checked before.
#ifndef RELIBRA_KERNELS_LOAD_HISTOGRAM_CPU_H_
#define RELIBRA_KERNELS_LOAD_HISTOGRAM_CPU_H_

#include <cstdint>

#include "kernels/id_report.h"
#include "kernels/load_histogram.h"

namespace relibra {

void LoadHistogramOnCpu(const RoutedIds& ids, int64_t experts, uint32_t* counts, IdReport* report);

}  // namespace relibra

#endif  // RELIBRA_KERNELS_LOAD_HISTOGRAM_CPU_H_
