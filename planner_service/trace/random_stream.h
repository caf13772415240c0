// Random numbers that are the same on every machine and with every compiler.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_RANDOM_STREAM_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_RANDOM_STREAM_H_

#include <cstdint>
#include <initializer_list>

namespace relibra {

// A stream of numbers that is a function of its keys alone, so that streams can be drawn from in
// any order and on any thread. SplitMix64 (Steele, Lea and Flood, 2014), started from the keys
// mixed one by one. Not thread-safe; not for secrets.
class RandomStream {
 public:
  RandomStream(std::initializer_list<uint64_t> keys);

  uint64_t Next();

  // Between 0 and 1, neither of them: an odd multiple of 2^-54.
  double Uniform();

  // 0..n-1; n >= 1.
  uint64_t Below(uint64_t n);

  // Standard normal, by Marsaglia's polar method.
  double Normal();

 private:
  uint64_t state_ = 0;
  double spare_ = 0;  // the method makes two at a time
  bool has_spare_ = false;
};

// Natural exponential and logarithm out of additions, multiplications and divisions alone: the C
// library's differ in the last bit from one to the next. Relative error below 1e-14. ExactExp is
// for -700..700, ExactLog for positive normal numbers.
double ExactExp(double x);
double ExactLog(double x);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_RANDOM_STREAM_H_
