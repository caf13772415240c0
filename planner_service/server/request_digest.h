// Digests by which a repeated request is told from another one.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_REQUEST_DIGEST_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_REQUEST_DIGEST_H_

#include <string>

#include "planner_service/core/loads.h"
#include "planner_service/core/planner.h"
#include "relibra/v1/planner.pb.h"

namespace relibra::server {

// Of a composition, whatever the order of its sequences.
std::string CompositionDigest(const v1::Composition& composition);

// Of counts given outright.
std::string LoadsDigest(const Loads& loads);

// Of plan options: every field as text, so that a message can show what differs.
std::string OptionsDigest(const PlanOptions& options);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_REQUEST_DIGEST_H_
