#include <SQLiteCpp/SQLiteCpp.h>
#include <sqlite3.h>

#include <cstring>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "planner_service/server/state_store.h"
#include "planner_service/trace/plan_message.h"

namespace relibra::server {
namespace {

constexpr int kSchemaVersion = 1;

// Groups are stored by their index: a job's spec never changes. Counts and homes are stored as this
// machine holds them in memory.
constexpr char kSchema[] = R"sql(
  CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    spec BLOB NOT NULL);
  CREATE TABLE homes (
    job_id INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    ep_group INTEGER NOT NULL,
    homes BLOB NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (job_id, ep_group));
  CREATE TABLE passes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    policy_version INTEGER NOT NULL,
    step INTEGER NOT NULL,
    pass TEXT NOT NULL,
    ep_group INTEGER NOT NULL,
    plan BLOB NOT NULL,
    micro_batches INTEGER NOT NULL,
    missing_share REAL NOT NULL,
    loads_digest TEXT NOT NULL,
    options_digest TEXT NOT NULL,
    homes_before BLOB NOT NULL,
    taken_back INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job_id, policy_version, step, pass, ep_group));
  CREATE TABLE loads (
    pass_id INTEGER NOT NULL REFERENCES passes (id) ON DELETE CASCADE,
    layer INTEGER NOT NULL,
    counts BLOB NOT NULL,
    PRIMARY KEY (pass_id, layer)) WITHOUT ROWID;
)sql";

std::string PlacementBytes(const Placement& homes) {
  std::string bytes;
  for (const std::vector<int32_t>& layer : homes) {
    bytes.append(reinterpret_cast<const char*>(layer.data()), layer.size() * sizeof(int32_t));
  }
  return bytes;
}

absl::StatusOr<std::shared_ptr<const Placement>> PlacementOf(const SQLite::Column& column,
                                                             size_t num_layers,
                                                             size_t num_experts) {
  if (static_cast<size_t>(column.getBytes()) != num_layers * num_experts * sizeof(int32_t)) {
    return absl::DataLossError("homes: wrong size");
  }
  auto homes = std::make_shared<Placement>(num_layers, std::vector<int32_t>(num_experts));
  const char* bytes = static_cast<const char*>(column.getBlob());
  for (size_t l = 0; l < num_layers; ++l) {
    std::memcpy((*homes)[l].data(), bytes + l * num_experts * sizeof(int32_t),
                num_experts * sizeof(int32_t));
  }
  return homes;
}

void BindBlob(SQLite::Statement& statement, int index, const std::string& bytes) {
  statement.bindNoCopy(index, bytes.data(), static_cast<int>(bytes.size()));
}

// [micro-batch][source][expert] of one layer.
std::vector<uint32_t> LayerCounts(const Loads& loads, int layer) {
  std::vector<uint32_t> counts;
  for (int m = 0; m < loads.shape().micro_batches; ++m) {
    const absl::Span<const uint32_t> matrix = loads.At(m, layer);
    counts.insert(counts.end(), matrix.begin(), matrix.end());
  }
  return counts;
}

class SqliteStateStore : public StateStore {
 public:
  SqliteStateStore(std::string path, std::unique_ptr<SQLite::Database> database)
      : path_(std::move(path)), database_(std::move(database)) {}

  absl::StatusOr<int64_t> AddJob(const v1::JobSpec& spec) override;
  absl::Status DeleteJob(int64_t job_id) override;
  absl::Status AddPasses(int64_t job_id,
                         absl::Span<const std::shared_ptr<const PlannedPass>> passes,
                         absl::Span<const StoredHomes> homes) override;
  absl::Status TakeBack(int64_t job_id, const PlannedPass& pass, const StoredHomes* homes) override;
  absl::Status ForgetSteps(int64_t job_id, absl::Span<const StepId> steps) override;
  absl::StatusOr<std::vector<StoredJob>> Load() override;

 private:
  // Runs `work` in one transaction; what SQLite throws becomes a status.
  absl::Status InTransaction(const std::function<absl::Status()>& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void InsertPass(int64_t job_id, const PlannedPass& pass) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutHomes(int64_t job_id, const StoredHomes& homes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<StoredJob> LoadJob(int64_t id, v1::JobSpec spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<StoredPass> LoadPass(const Job& job, SQLite::Statement& row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Loads> LoadLoads(const Job& job, int group, int64_t pass_id, int micro_batches)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  const std::unique_ptr<SQLite::Database> database_ ABSL_PT_GUARDED_BY(mutex_);
};

absl::Status SqliteStateStore::InTransaction(const std::function<absl::Status()>& work) {
  try {
    SQLite::Transaction transaction(*database_);
    absl::Status status = work();
    if (status.ok()) transaction.commit();
    return status;
  } catch (const SQLite::Exception& error) {
    if (error.getExtendedErrorCode() == SQLITE_CONSTRAINT_FOREIGNKEY) {
      return absl::NotFoundError("the job was deleted");
    }
    return absl::UnavailableError(absl::StrCat("--state-file ", path_, ": ", error.what()));
  }
}

absl::StatusOr<int64_t> SqliteStateStore::AddJob(const v1::JobSpec& spec) {
  absl::MutexLock lock(&mutex_);
  int64_t id = 0;
  absl::Status status = InTransaction([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SQLite::Statement insert(*database_, "INSERT INTO jobs (name, spec) VALUES (?, ?)");
    const std::string bytes = spec.SerializeAsString();
    insert.bindNoCopy(1, spec.job());
    BindBlob(insert, 2, bytes);
    insert.exec();
    id = database_->getLastInsertRowid();
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return id;
}

absl::Status SqliteStateStore::DeleteJob(int64_t job_id) {
  absl::MutexLock lock(&mutex_);
  return InTransaction([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SQLite::Statement remove(*database_, "DELETE FROM jobs WHERE id = ?");
    remove.bind(1, job_id);
    remove.exec();
    return absl::OkStatus();
  });
}

void SqliteStateStore::PutHomes(int64_t job_id, const StoredHomes& homes) {
  SQLite::Statement put(*database_,
                        "INSERT OR REPLACE INTO homes (job_id, ep_group, homes, digest) "
                        "VALUES (?, ?, ?, ?)");
  const std::string bytes = PlacementBytes(*homes.homes);
  put.bind(1, job_id);
  put.bind(2, homes.group);
  BindBlob(put, 3, bytes);
  put.bindNoCopy(4, homes.digest);
  put.exec();
}

void SqliteStateStore::InsertPass(int64_t job_id, const PlannedPass& pass) {
  SQLite::Statement insert(
      *database_,
      "INSERT INTO passes (job_id, policy_version, step, pass, ep_group, plan, micro_batches, "
      "missing_share, loads_digest, options_digest, homes_before) "
      "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  std::vector<uint32_t> layer_ids;
  for (int layer : pass.group().layers) layer_ids.push_back(pass.job->LayerId(layer));
  const std::string plan = PlanMessage(pass.plan, {}, layer_ids).SerializeAsString();
  const std::string homes_before = PlacementBytes(*pass.homes_before);
  const Loads& loads = pass.loads->loads;
  insert.bind(1, job_id);
  insert.bind(2, pass.key.step.policy_version);
  insert.bind(3, pass.key.step.step);
  insert.bindNoCopy(4, pass.key.pass);
  insert.bind(5, pass.key.group);
  BindBlob(insert, 6, plan);
  insert.bind(7, loads.shape().micro_batches);
  insert.bind(8, pass.loads->missing_share);
  insert.bindNoCopy(9, pass.request.loads);
  insert.bindNoCopy(10, pass.request.options);
  BindBlob(insert, 11, homes_before);
  insert.exec();
  const int64_t pass_id = database_->getLastInsertRowid();
  SQLite::Statement layer(*database_,
                          "INSERT INTO loads (pass_id, layer, counts) VALUES (?, ?, ?)");
  for (int l = 0; l < loads.shape().layers; ++l) {
    const std::vector<uint32_t> counts = LayerCounts(loads, l);
    layer.reset();
    layer.bind(1, pass_id);
    layer.bind(2, l);
    layer.bindNoCopy(3, counts.data(), static_cast<int>(counts.size() * sizeof(uint32_t)));
    layer.exec();
  }
}

absl::Status SqliteStateStore::AddPasses(
    int64_t job_id, absl::Span<const std::shared_ptr<const PlannedPass>> passes,
    absl::Span<const StoredHomes> homes) {
  absl::MutexLock lock(&mutex_);
  return InTransaction([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& pass : passes) InsertPass(job_id, *pass);
    for (const StoredHomes& of_group : homes) PutHomes(job_id, of_group);
    return absl::OkStatus();
  });
}

absl::Status SqliteStateStore::TakeBack(int64_t job_id, const PlannedPass& pass,
                                        const StoredHomes* homes) {
  absl::MutexLock lock(&mutex_);
  return InTransaction([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SQLite::Statement update(*database_,
                             "UPDATE passes SET taken_back = 1 WHERE job_id = ? AND "
                             "policy_version = ? AND step = ? AND pass = ? AND ep_group = ?");
    update.bind(1, job_id);
    update.bind(2, pass.key.step.policy_version);
    update.bind(3, pass.key.step.step);
    update.bindNoCopy(4, pass.key.pass);
    update.bind(5, pass.key.group);
    update.exec();
    if (homes != nullptr) PutHomes(job_id, *homes);
    return absl::OkStatus();
  });
}

absl::Status SqliteStateStore::ForgetSteps(int64_t job_id, absl::Span<const StepId> steps) {
  if (steps.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  return InTransaction([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SQLite::Statement remove(
        *database_, "DELETE FROM passes WHERE job_id = ? AND policy_version = ? AND step = ?");
    for (const StepId& id : steps) {
      remove.reset();
      remove.bind(1, job_id);
      remove.bind(2, id.policy_version);
      remove.bind(3, id.step);
      remove.exec();
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<Loads> SqliteStateStore::LoadLoads(const Job& job, int group, int64_t pass_id,
                                                  int micro_batches) {
  absl::StatusOr<Loads> loads =
      Loads::Create({.micro_batches = micro_batches,
                     .layers = static_cast<int>(job.groups[group].layers.size()),
                     .sources = job.topology.num_ranks(),
                     .experts = job.num_experts()});
  if (!loads.ok()) return loads;
  const size_t matrix_bytes = loads->At(0, 0).size() * sizeof(uint32_t);
  SQLite::Statement rows(*database_,
                         "SELECT layer, counts FROM loads WHERE pass_id = ? ORDER BY layer");
  rows.bind(1, pass_id);
  int num_layers = 0;
  for (; rows.executeStep(); ++num_layers) {
    const SQLite::Column counts = rows.getColumn(1);
    if (rows.getColumn(0).getInt() != num_layers || num_layers >= loads->shape().layers ||
        static_cast<size_t>(counts.getBytes()) != matrix_bytes * micro_batches) {
      return absl::DataLossError("loads: wrong size");
    }
    for (int m = 0; m < micro_batches; ++m) {
      std::memcpy(loads->Mutable(m, num_layers).data(),
                  static_cast<const char*>(counts.getBlob()) + m * matrix_bytes, matrix_bytes);
    }
  }
  if (num_layers != loads->shape().layers) return absl::DataLossError("loads: layers are missing");
  return loads;
}

absl::StatusOr<StoredPass> SqliteStateStore::LoadPass(const Job& job, SQLite::Statement& row) {
  const int group = row.getColumn("ep_group").getInt();
  if (group < 0 || group >= static_cast<int>(job.groups.size())) {
    return absl::DataLossError("ep_group: no such group");
  }
  v1::Plan message;
  const SQLite::Column plan_bytes = row.getColumn("plan");
  if (!message.ParseFromArray(plan_bytes.getBlob(), plan_bytes.getBytes())) {
    return absl::DataLossError("plan: not a Plan message");
  }
  absl::StatusOr<Plan> plan = PlanFromMessage(message, "plan");
  if (!plan.ok()) return plan.status();
  absl::StatusOr<std::shared_ptr<const Placement>> homes_before = PlacementOf(
      row.getColumn("homes_before"), job.groups[group].layers.size(), job.num_experts());
  if (!homes_before.ok()) return homes_before.status();
  absl::StatusOr<Loads> loads = LoadLoads(job, group, row.getColumn("id").getInt64(),
                                          row.getColumn("micro_batches").getInt());
  if (!loads.ok()) return loads.status();
  return StoredPass{.key = {.step = {.policy_version = row.getColumn("policy_version").getUInt(),
                                     .step = row.getColumn("step").getUInt()},
                            .pass = row.getColumn("pass").getString(),
                            .group = group},
                    .plan = *std::move(plan),
                    .loads = *std::move(loads),
                    .missing_share = row.getColumn("missing_share").getDouble(),
                    .request = {.loads = row.getColumn("loads_digest").getString(),
                                .options = row.getColumn("options_digest").getString()},
                    .homes_before = *std::move(homes_before),
                    .taken_back = row.getColumn("taken_back").getInt() != 0};
}

absl::StatusOr<StoredJob> SqliteStateStore::LoadJob(int64_t id, v1::JobSpec spec) {
  absl::StatusOr<std::shared_ptr<const Job>> job = MakeJob(spec);
  if (!job.ok()) return job.status();
  StoredJob stored = {.id = id, .spec = std::move(spec), .homes = {}, .passes = {}};
  SQLite::Statement homes(*database_, "SELECT ep_group, homes, digest FROM homes WHERE job_id = ?");
  homes.bind(1, id);
  while (homes.executeStep()) {
    const int group = homes.getColumn(0).getInt();
    if (group < 0 || group >= static_cast<int>((*job)->groups.size())) {
      return absl::DataLossError("homes: no such group");
    }
    absl::StatusOr<std::shared_ptr<const Placement>> placement =
        PlacementOf(homes.getColumn(1), (*job)->groups[group].layers.size(), (*job)->num_experts());
    if (!placement.ok()) return placement.status();
    stored.homes.push_back({group, *std::move(placement), homes.getColumn(2).getString()});
  }
  SQLite::Statement passes(*database_, "SELECT * FROM passes WHERE job_id = ? ORDER BY id");
  passes.bind(1, id);
  while (passes.executeStep()) {
    absl::StatusOr<StoredPass> pass = LoadPass(**job, passes);
    if (!pass.ok()) return pass.status();
    stored.passes.push_back(*std::move(pass));
  }
  return stored;
}

absl::StatusOr<std::vector<StoredJob>> SqliteStateStore::Load() {
  absl::MutexLock lock(&mutex_);
  std::vector<StoredJob> jobs;
  absl::Status status = InTransaction([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SQLite::Statement rows(*database_, "SELECT id, spec FROM jobs ORDER BY id");
    while (rows.executeStep()) {
      v1::JobSpec spec;
      const SQLite::Column bytes = rows.getColumn(1);
      absl::StatusOr<StoredJob> job = absl::DataLossError("spec: not a JobSpec message");
      if (spec.ParseFromArray(bytes.getBlob(), bytes.getBytes())) {
        job = LoadJob(rows.getColumn(0).getInt64(), std::move(spec));
      }
      if (!job.ok()) {
        return absl::DataLossError(absl::StrCat("--state-file ", path_, ": job ",
                                                rows.getColumn(0).getInt64(), ": ",
                                                job.status().message()));
      }
      jobs.push_back(*std::move(job));
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return jobs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteStateStore(const std::string& path) {
  try {
    auto database = std::make_unique<SQLite::Database>(
        path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE | SQLite::OPEN_NOMUTEX);
    // One planner owns the file; a write is on disk, whole, when its transaction ends.
    database->exec("PRAGMA locking_mode = EXCLUSIVE");
    database->exec("PRAGMA journal_mode = WAL");
    database->exec("PRAGMA synchronous = FULL");
    database->exec("PRAGMA foreign_keys = ON");
    const int version = database->execAndGet("PRAGMA user_version").getInt();
    if (version == 0) {
      SQLite::Transaction transaction(*database);
      database->exec(kSchema);
      database->exec(absl::StrCat("PRAGMA user_version = ", kSchemaVersion));
      transaction.commit();
    } else if (version != kSchemaVersion) {
      return absl::InvalidArgumentError(absl::StrCat("--state-file ", path, ": its version is ",
                                                     version, ", this planner writes version ",
                                                     kSchemaVersion));
    }
    return std::make_unique<SqliteStateStore>(path, std::move(database));
  } catch (const SQLite::Exception& error) {
    return absl::UnavailableError(
        absl::StrCat("--state-file ", path, ": ", error.what(),
                     error.getErrorCode() == SQLITE_BUSY ? "; does another planner use it?" : ""));
  }
}

}  // namespace relibra::server
