--- The options of the plugin and its entry points. Nothing else is loaded before the first command.

local M = {}

--- The options and their defaults; `setup` is needed only to change them.
M.config = {
  --- The program that starts the daemon: a name in PATH, or a path.
  ollmctl = "ollmctl",
  --- The home of the daemon; by default `$OLLM_HOME`, else `~/.ollm`.
  home = nil,
  --- The socket of the daemon; by default `$OLLM_SOCKET`, else found from the home.
  socket = nil,
  --- The model of new sessions; by default `models.default` of the daemon.
  model = nil,
  --- The place of a chat: `vertical`, `horizontal`, `tab`, `current`, or `auto`: beside the window if there is room.
  layout = "auto",
  --- The lines of the window in which a message is written.
  prompt_height = 4,
}

--- Names of options that have no default, with the types of all.
local TYPES = {
  ollmctl = "string", home = "string", socket = "string", model = "string", layout = "string", prompt_height = "number",
}
local LAYOUTS = { "auto", "vertical", "horizontal", "tab", "current" }

--- Returns why Neovim is too old, or nil.
---@return string?
function M.version_problem()
  if vim.fn.has("nvim-0.10") == 1 then
    return nil
  end
  local version = vim.version and vim.version() or {}
  local found = version.major and ("%d.%d.%d"):format(version.major, version.minor, version.patch) or "older"
  return ("ollm needs Neovim 0.10 or newer, and this is %s: install a newer one from https://neovim.io"):format(found)
end

--- Returns what is wrong with an option, or nil.
local function option_problem(name, value)
  local wanted = TYPES[name]
  if not wanted then
    local known = vim.tbl_keys(TYPES)
    table.sort(known)
    return ("there is no option %s; the options are %s"):format(name, table.concat(known, ", "))
  end
  if type(value) ~= wanted then
    return ("the option %s must be a %s"):format(name, wanted)
  end
  if name == "layout" and not vim.tbl_contains(LAYOUTS, value) then
    return "the option layout is one of " .. table.concat(LAYOUTS, ", ")
  end
  if name == "prompt_height" and value < 1 then
    return "the option prompt_height must be at least 1"
  end
end

--- Changes options. Optional.
---@param options table?
function M.setup(options)
  for name, value in pairs(options or {}) do
    local problem = option_problem(tostring(name), value)
    if problem then
      vim.notify("ollm: " .. problem .. " (:help ollm-options)", vim.log.levels.ERROR)
    else
      M.config[name] = value
    end
  end
end

return M
