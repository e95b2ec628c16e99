-- Health of Lattice's kinds for Argo CD: `resource.customizations` "lattice.dev/*", `health.lua`.
-- It reads the conditions as kstatus does; docs/howto/gitops.md has the table. tests/unit/charts/test_argocd.py runs it.
local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is_true(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end

local function health(word, condition)
  local message = ""
  if condition ~= nil then
    message = condition.reason
    if condition.message ~= nil and condition.message ~= "" then
      message = condition.reason .. ": " .. condition.message
    end
  end
  return { status = word, message = message }
end

if next(conditions) == nil then
  return { status = "Progressing", message = "nothing has judged it yet" }
end
local ended = is_true("Finished") and not is_true("Reconciling")
local behind = (status.observedGeneration or 0) < (obj.metadata.generation or 0)
if behind and not ended then
  return { status = "Progressing", message = "the last change of spec has not been judged yet" }
end
if is_true("Stalled") then
  return health("Degraded", conditions.Stalled)
end
if is_true("Reconciling") then
  return health("Progressing", conditions.Reconciling)
end
if is_true("Ready") then
  return health("Healthy", conditions.Ready)
end
if obj.kind == "Allocation" and obj.spec ~= nil and obj.spec.hold == true and (status.phase or "Pending") == "Pending" then
  return health("Suspended", conditions.Ready)
end
return health("Progressing", conditions.Ready)
