/* pride from C, and from any language that calls C: libpride.so. Start here. */
// SPDX-License-Identifier: Apache-2.0
/*
 *   pride_layout_create(tensors, n, &layout);
 *   pride_comm_create(&transport, &comm);              (collectives of your own)
 *   pride_options_init(&options, sizeof options);
 *   pride_optimizer_create(comm, layout, &options, &optimizer);
 *   for (...) pride_optimizer_step(optimizer, &params, &grads, NULL, &report);
 *
 * Handles belong to the caller, who destroys them in the reverse order. docs/c_interface.md.
 */
#ifndef PRIDE_C_PRIDE_H
#define PRIDE_C_PRIDE_H

#include "pride/c/base.h"
#include "pride/c/comm.h"
#include "pride/c/coordinator.h"
#include "pride/c/mean.h"
#include "pride/c/methods.h"
#include "pride/c/optimizer.h"

#endif
