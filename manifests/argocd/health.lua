-- Health of an InferenceService for Argo CD, from its conditions.
-- Install as data of ConfigMap argocd-cm, key: resource.customizations.health.serving.kvasir.dev_InferenceService
local found = {}
for _, condition in ipairs((obj.status or {}).conditions or {}) do
  found[condition.type] = condition
end
local ready, stalled, reconciling = found.Ready, found.Stalled, found.Reconciling
if ready == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "waiting for the operator"}
end
if stalled ~= nil and stalled.status == "True" then
  return {status = "Degraded", message = stalled.reason .. ": " .. stalled.message}
end
if ready.reason == "Paused" then
  return {status = "Suspended", message = ready.message}
end
if ready.status ~= "True" or (reconciling ~= nil and reconciling.status == "True") then
  return {status = "Progressing", message = ready.reason .. ": " .. ready.message}
end
return {status = "Healthy", message = ready.message}
